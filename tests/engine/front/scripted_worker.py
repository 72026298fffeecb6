"""The real front over the scripted core: `python -m tests.engine.front.scripted_worker`."""

import asyncio
import os
import sys

from engine.__main__ import loop_factory
from engine.config import EngineConfig
from engine.front.connection import OUTBOX_BYTES
from engine.front.logs import configure_logs
from engine.front.worker import Worker


async def _serve(config: EngineConfig) -> None:
    command = (sys.executable, "-m", "tests.engine.front.scripted_core")
    outbox_bytes = int(os.environ.get("SCRIPTED_OUTBOX_BYTES", OUTBOX_BYTES))
    await Worker(config, core_command=command, outbox_bytes=outbox_bytes).run()


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = EngineConfig.from_env()
    configure_logs(settings.worker_id)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings))
