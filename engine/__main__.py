"""`python -m engine`: the worker. Settings come from the environment, see `engine.config`."""

import asyncio
import os
import sys

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError


def main() -> int:
    """Serve until told to stop. A wrong setting is one line on stderr and exit status 2, another failure 1."""
    # Before grpc is imported: its own lines about a busy port would bury ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        _serve(EngineConfig.from_env())
    except ConfigError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(config: EngineConfig) -> None:
    from engine.front.logs import configure_logs
    from engine.front.worker import Worker

    async def serve() -> None:
        await Worker(config).run()

    configure_logs(config.worker_id)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


if __name__ == "__main__":
    sys.exit(main())
