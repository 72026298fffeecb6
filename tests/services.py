"""Give a test run its own Postgres and Redis: a pytest plugin, loaded by `addopts` before Django reads its settings.

The servers start beside collection and are awaited before the first test. Runs of `tests/engine` and `tests/kernels`
alone get none, and no Django. DATABASE_URL and REDIS_URL that are set already are used as they are. Workers of xdist
inherit the addresses from the environment. When pytest ends, even by kill -9, the servers see their stdin close and go.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_SERVICES = (ROOT / "tests" / "engine", ROOT / "tests" / "kernels")
ENVIRONMENT = {
    "SECRET_KEY": "only-for-tests-0123456789abcdefghijklmnopqrstuvwxyz",
    "KEY_PEPPER": "only-for-tests-pepper",
    "ENGINE_TOKEN": "only-for-tests-token",
    "ENGINE_POISON": "1",
    "ENGINE_PREVIEW_NICE": "0",  # a machine under tests is never idle
    "OMP_NUM_THREADS": "2",
}


class Services:
    """One run's servers: a child process that lives as long as its stdin is open."""

    def __init__(self) -> None:
        from gateway.embedded.throwaway import servers

        folder = Path(tempfile.mkdtemp(prefix="tollgate-test-"))
        postgres, redis = servers(folder)
        command = [sys.executable, "-m", "gateway.embedded.throwaway", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        os.environ["DATABASE_URL"] = postgres.url
        os.environ["REDIS_URL"] = redis.url
        os.environ["TOLLGATE_VAR"] = str(folder / "var")

    def wait_ready(self) -> None:
        """Block until both servers answer; end the run with their reason when they do not."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            if self.process.stdout.readline() != b"ready\n":
                pytest.exit("the throw-away Postgres and Redis did not start, see above", returncode=3)
            self.process.stdout.close()

    def stop(self) -> None:
        """Stop the servers and wait until they are gone."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(30)


SERVICES = pytest.StashKey[Services]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the settings of plugins that a bare GPU image lacks, so that `--strict-config` passes there."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds a test may take (pytest-timeout is not installed)")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Set the environment and start the servers; a wrapper, so that it comes before Django's plugin."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    namespace = early_config.known_args_namespace
    if needs_services(namespace.file_or_dir):
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
        idle = namespace.help or namespace.version or namespace.collectonly
        if not idle and not {"DATABASE_URL", "REDIS_URL"} <= os.environ.keys():
            early_config.stash[SERVICES] = Services()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Wait for the servers before the first test."""
    if SERVICES in session.config.stash:
        session.config.stash[SERVICES].wait_ready()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers."""
    if SERVICES in config.stash:
        config.stash[SERVICES].stop()
        del config.stash[SERVICES]


def needs_services(arguments: list[str]) -> bool:
    """Say whether any of pytest's positional arguments lies outside the folders that need no services."""
    paths = [Path(argument.split("::")[0]).resolve() for argument in arguments]
    inside = [any(path == folder or folder in path.parents for folder in WITHOUT_SERVICES) for path in paths]
    return not paths or not all(inside)
