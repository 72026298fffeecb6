"""The servers of a test run: whatever ends the run ends them, and their folder goes."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway.config import ROOT
from gateway.embedded.throwaway import servers
from tests.product import wait_for


def _processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                in_folder = (entry / "cwd").readlink().is_relative_to(folder)
            except OSError:
                continue  # it ended meanwhile
            if str(folder) in command or in_folder:
                found.append(command)
    return found


def test_a_killed_run_leaves_no_process_and_no_file() -> None:
    """`kill -9` of the process that asked for the servers."""
    folder = Path(tempfile.mkdtemp(prefix="tollgate-test-"))
    code = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-m', 'gateway.embedded.throwaway', {str(folder)!r}]\n"
        "server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(server.stdout.readline().decode(), flush=True)\n"
        "server.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        postgres, redis = servers(folder)
        assert postgres.is_ready()
        assert redis.is_ready()
        run.send_signal(signal.SIGKILL)
    wait_for(lambda: not folder.exists() and not _processes_of(folder), 90, "the servers to go")


def test_a_killed_guardian_takes_the_servers_along() -> None:
    """`kill -9` of the process between the run and its servers leaves no process."""
    folder = Path(tempfile.mkdtemp(prefix="tollgate-test-"))
    command = [sys.executable, "-m", "gateway.embedded.throwaway", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as guardian:
        assert guardian.stdout is not None
        assert guardian.stdout.readline() == b"ready\n"
        guardian.kill()
    wait_for(lambda: not _processes_of(folder), 90, "the servers to go")
    subprocess.run(["rm", "-rf", str(folder)], check=True)
