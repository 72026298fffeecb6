"""`python -m engine`: the worker. Settings come from the environment, see `engine.config`."""

import asyncio
import gc
import os
import sys

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, ModelError


def main() -> int:
    """Serve until told to stop. A wrong setting or model is one line on stderr and exit status 2, another failure 1."""
    # Before grpc is imported. Its own lines about a busy port would bury ours; and nothing here forks without an exec,
    # where what it does in the new process only finds locks that nobody will release.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        _serve(EngineConfig.from_env())
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | ModelError) else 1
    return 0


def _serve(config: EngineConfig) -> None:
    from engine.front.logs import configure_logs
    from engine.front.worker import Worker

    async def serve() -> None:
        await Worker(config).run()

    configure_logs(config.worker_id)
    gc.freeze()  # what is loaded stays: collections while tokens pass need not look at it
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """Return uvloop's loop where it is installed; None stands for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


if __name__ == "__main__":
    sys.exit(main())
