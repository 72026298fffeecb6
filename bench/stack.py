"""The product without its embedded parts, for benches of the gateway and of the controller."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from bench.report import machine
from tests.engine.tiny_model import make_tiny_model
from tests.gateway.wire.stack import Stack, running_stack
from tests.services import ENVIRONMENT, Services

_WARNING = 30  # what is logged at least


@contextmanager
def own_stack(*models: str, engine: str = "engine") -> Iterator[Stack]:
    """Say what machine this is, and run Postgres, Redis, web, controller, and a worker with a tiny model for each name.

    `engine`: the module that is a worker's process; `bench.stub_engine` computes nothing.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_WARNING))
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    print(machine())
    services = Services()
    try:
        services.wait_ready()
        with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name:
            folder = Path(name)
            model = make_tiny_model(folder / "model")
            with running_stack(folder, dict.fromkeys(models, model), engine) as stack:
                yield stack
    finally:
        services.stop()
