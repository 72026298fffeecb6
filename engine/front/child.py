"""A child process: started without a fork of this process, waited for without signals, killed without a doubt whom.

An event loop that forks (libuv does, and runs what is registered for it: gRPC's handlers, without the threads that hold
their locks) may be left with a child that waits for ever before it has become the program; and the loop waits for it.
So this one is started by vfork, in which nothing runs but system calls up to exec.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence


class Child:
    """One child. It is reaped on the event loop alone: until then its process id is nobody else's."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        """Start it, in a session of its own; call it on the event loop, from the thread that outlives the child.

        `stdin` and `stdout` are files for it to read and to write; None: this process's own.

        Raises:
            OSError: it cannot be started.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.was_killed = False  # by `kill`
        self._process = subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, start_new_session=True)
        threading.Thread(target=self._watch, name=f"child-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, -N after signal N; None while it lives."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end and return the exit status."""
        await self._ended.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.was_killed = True
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        # Where SIGCHLD is ignored the kernel reaps, and there is nothing to see.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self._process.wait()
        self._ended.set()
