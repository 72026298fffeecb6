"""Turn SIGINT, SIGTERM and SIGHUP into a flag that the waits of `manage.py up` look at."""

import signal
import time
from types import FrameType

TICK_SECONDS = 0.1


class StopRequested(Exception):
    """A person or a supervisor asked this process to stop."""


class StopSignals:
    """Count the requests to stop. One asks for an orderly end, a second one for a quick one."""

    def __init__(self) -> None:
        self.requests = 0
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._note)

    def pause(self) -> None:
        """Sleep for a tick.

        Raises:
            StopRequested: a signal came.
        """
        if self.requests:
            raise StopRequested
        time.sleep(TICK_SECONDS)

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.requests += 1
