"""Settings of the control plane's processes: read from the environment once, frozen, each with unit and default."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST_BODY_BYTES = 64 << 20  # a tenant's quarter of them holds the largest body, also while others hold theirs

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")  # as browsers write it: no path, not even a slash


class ConfigError(Exception):
    """A setting is wrong; the message names it and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of web, controller, celery and `manage.py`. `manage.py up` sets what is unset for its children."""

    var_dir: Path = ROOT / "var"  # TOLLGATE_VAR: data, logs, sockets of embedded mode
    port: int = 8000  # PORT: web listens here
    host: str = "127.0.0.1"  # HOST
    web_workers: int = 1  # WEB_WORKERS: web processes
    database_url: str = ""  # DATABASE_URL: postgres://user:pass@host/db, or postgres:///db?host=/socket/dir
    redis_url: str = ""  # REDIS_URL: redis://host:6379/0 or unix:///path
    secret_key: str = ""  # SECRET_KEY: Django's
    key_pepper: str = ""  # KEY_PEPPER: HMAC key of API key digests; changing it voids every key
    engine_token: str = ""  # ENGINE_TOKEN: bearer token of worker calls and announcements
    engine_ca: str = ""  # ENGINE_TLS_CA: PEM file; set: workers are dialled with TLS
    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")  # ALLOWED_HOSTS: comma separated
    cors_origins: tuple[str, ...] = ()  # CORS_ORIGINS: whose pages may call /v1 from a browser, comma separated; *: any
    public_url: str = ""  # PUBLIC_URL: what users see; empty: http://127.0.0.1:PORT
    engine_state_dir: str = ""  # ENGINE_STATE_DIR: of a worker on this machine, for the training of its reuse predictor
    train_seconds: int = 60  # TRAIN_SECONDS: of a processor that this may take, once a day; 0: no training
    drain_seconds: int = 60  # DRAIN_SECONDS: how long a stopping web process lets streams finish
    body_bytes: int = 256 << 20  # BODY_BYTES: of request bodies held in one web process; a tenant has 1/4 at most
    realtime_sockets: int = 5000  # REALTIME_SOCKETS: open in one web process; of them a tenant has 3/4, a key 1/2
    realtime_slow_seconds: int = 15  # REALTIME_SLOW_SECONDS: that an event waits for a reader; then its socket closes

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "GatewayConfig":
        """Read and check `env`.

        Raises:
            ConfigError: names the variable, its value and what it takes.
        """
        values: dict[str, object] = {}
        names = {"var_dir": "TOLLGATE_VAR", "engine_ca": "ENGINE_TLS_CA"}
        for field in cls.__dataclass_fields__:
            variable = names.get(field, field.upper())
            raw = env.get(variable, "").strip()
            if raw:
                values[field] = _parse(variable, raw, getattr(cls(), field))
        config = cls(**values)  # type: ignore[arg-type]  # each value was parsed to its default's type
        if not 0 < config.port < 65536:
            raise ConfigError(f"PORT={config.port}: choose a port from 1 to 65535")
        if config.web_workers < 1:
            raise ConfigError(f"WEB_WORKERS={config.web_workers}: at least 1")
        for name in ("realtime_sockets", "realtime_slow_seconds"):
            if getattr(config, name) < 1:
                raise ConfigError(f"{name.upper()}={getattr(config, name)}: at least 1")
        if config.body_bytes < LEAST_BODY_BYTES:
            raise ConfigError(f"BODY_BYTES={config.body_bytes}: at least {LEAST_BODY_BYTES}")
        for origin in config.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"CORS_ORIGINS={origin}: origins such as https://app.example.com, or * for any")
        if not 0 <= config.train_seconds <= 3600:
            raise ConfigError(f"TRAIN_SECONDS={config.train_seconds}: from 1 to 3600, or 0 for no training")
        return config

    @property
    def base_url(self) -> str:
        """The address that users type, without a trailing slash."""
        return self.public_url.rstrip("/") or f"http://{self.host}:{self.port}"


def _parse(variable: str, raw: str, default: object) -> object:
    try:
        if isinstance(default, int):
            return int(raw)
        if isinstance(default, tuple):
            return tuple(part.strip() for part in raw.split(",") if part.strip())
        return Path(raw).resolve() if isinstance(default, Path) else raw
    except ValueError as error:
        raise ConfigError(f"{variable}={raw!r}: expected {type(default).__name__}") from error


@lru_cache(maxsize=1)
def config() -> GatewayConfig:
    """The process's configuration."""
    return GatewayConfig.from_env(os.environ)
