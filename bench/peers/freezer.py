"""Stop processes in mid-air and let them go on, so that an idle server takes nothing from the one that is measured.

    with Freezer() as freezer:
        freezer.freeze([pid, …])
        freezer.thaw([pid, …])

The signals are sent by a child (this file, run as a script) that lets all go on when its pipe ends: a run that is
killed leaves nothing frozen, and what is not frozen can be told to end.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class Freezer:
    """Sends SIGSTOP and SIGCONT. Several may not share processes."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for us: the child ends when we have
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let everything go on."""
        assert self._child.stdin and self._child.stdout
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()

    def freeze(self, pids: Iterable[int]) -> None:
        """Stop processes; a negative number is a process group."""
        self._tell("freeze", pids)

    def thaw(self, pids: Iterable[int]) -> None:
        """Let processes go on."""
        self._tell("thaw", pids)

    def _tell(self, word: str, pids: Iterable[int]) -> None:
        assert self._child.stdin and self._child.stdout
        print(word, *pids, file=self._child.stdin, flush=True)
        self._child.stdout.readline()


def _send(number: signal.Signals, pid: int) -> None:
    try:
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended


def _serve() -> None:
    frozen: set[int] = set()
    for line in sys.stdin:
        word, *rest = line.split()
        pids = set(map(int, rest))
        for pid in pids:
            _send(signal.SIGSTOP if word == "freeze" else signal.SIGCONT, pid)
        frozen = frozen | pids if word == "freeze" else frozen - pids
        print("done", flush=True)
    for pid in frozen:
        _send(signal.SIGCONT, pid)


if __name__ == "__main__":
    _serve()
