"""The processes of the embedded product, in the order in which they start and, reversed, stop."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config import GatewayConfig
from gateway.embedded.instance import Instance
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.redis import EmbeddedRedis
from gateway.embedded.tethered import tethered

AFTER_DRAIN_SECONDS = 5  # web lets streams finish by itself (DRAIN_SECONDS); this is for what is no stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One supervised program. Stages start in rising order and stop in falling order."""

    name: str
    command: tuple[str, ...]
    stage: int  # 0: at once; 1: when the database is prepared; 2: when requests are served, to leave others the cores
    stop_stage: int  # all of the highest stop first, together
    stop_signal: str = "TERM"
    stop_seconds: int = 10  # then SIGKILL
    processes: int = 1
    listens: bool = False  # its processes share the instance's listening socket as file descriptor 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `manage.py up` runs: the programs, their environment, and the servers among them."""

    programs: tuple[Program, ...]
    environment: Mapping[str, str]
    postgres: EmbeddedPostgres | None  # None: DATABASE_URL names one
    redis: EmbeddedRedis | None  # None: REDIS_URL names one


def plan(config: GatewayConfig, instance: Instance, secrets: Mapping[str, str]) -> Plan:
    """Return what to run; `secrets` are the settings to add to the environment."""
    postgres = redis = None
    env = dict(os.environ) | dict(secrets)
    servers: list[Program] = []
    if not config.database_url:
        sockets = instance.socket_dir / "postgres"
        postgres = EmbeddedPostgres(data_dir=instance.var_dir / "postgres", socket_dir=sockets)
        env["DATABASE_URL"] = postgres.url
        servers.append(
            Program(name="postgres", command=tuple(postgres.command()), stage=0, stop_stage=0, stop_signal="INT")
        )
    if not config.redis_url:
        redis = EmbeddedRedis(data_dir=instance.var_dir / "redis", socket_path=instance.socket_dir / "redis.sock")
        env["REDIS_URL"] = redis.url
        servers.append(Program(name="redis", command=tuple(redis.command()), stage=0, stop_stage=0))
    env |= _settings(config, instance, env)
    return Plan(programs=(*servers, *_our_programs(config)), environment=env, postgres=postgres, redis=redis)


def _settings(config: GatewayConfig, instance: Instance, env: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        "ENGINE_ADDRESS": f"unix:{instance.socket_dir / 'engine.sock'}",
        "ENGINE_STATE_DIR": str(instance.var_dir / "engine"),
        "ENGINE_ANNOUNCE_URL": instance.local_url,
    }
    fixed = {
        "TOLLGATE_EMBEDDED": "1",
        "TOLLGATE_VAR": str(instance.var_dir),
        "PORT": str(config.port),
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "PYTHONUNBUFFERED": "1",
        "PROMETHEUS_MULTIPROC_DIR": str(instance.metrics_dir),
    }
    return {name: value for name, value in defaults.items() if not env.get(name)} | fixed


def _our_programs(config: GatewayConfig) -> list[Program]:
    celery = ("-m", "celery", "--quiet", "--app", "gateway.celery")
    # Threads: a pool of processes would outlive a killed worker.
    worker = (*celery, "worker", "--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle")
    beat = (*celery, "beat", "--pidfile", "")
    web = (
        *("-m", "uvicorn", "gateway.asgi:application", "--http", "gateway.http_protocol:HttpProtocol"),
        *("--fd", "0", "--lifespan", "on", "--no-access-log"),
        *("--no-server-header", "--timeout-graceful-shutdown", str(AFTER_DRAIN_SECONDS)),
    )
    return [
        Program(name="engine", command=_python("-m", "engine"), stage=0, stop_stage=1),
        Program(name="controller", command=_python("manage.py", "controller"), stage=1, stop_stage=1),
        Program(name="celery", command=_python(*worker), stage=2, stop_stage=2),
        Program(name="beat", command=_python(*beat), stage=2, stop_stage=2),
        Program(
            name="web",
            command=_python(*web),
            stage=1,
            stop_stage=2,
            stop_seconds=config.drain_seconds + AFTER_DRAIN_SECONDS + 5,
            processes=config.web_workers,
            listens=True,
        ),
    ]


def _python(*arguments: str) -> tuple[str, ...]:
    return tuple(tethered([sys.executable, *arguments]))
