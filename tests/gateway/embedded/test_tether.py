"""What `tether.py` promises: a child never outlives its parent, and gets no more rights or secrets than it needs."""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.embedded.tethered import tethered, tethered_here
from tests.product import wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to give up")


@pytest.fixture
def parent() -> "Iterator[subprocess.Popen[bytes]]":
    """A parent that starts one tethered child, prints the child's pid, and stays."""
    code = (
        "import subprocess, sys, time\n"
        "from gateway.embedded.tethered import tethered_here\n"
        "child = subprocess.Popen(tethered_here([sys.executable, '-c', 'import time; time.sleep(600)']))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_child_dies_with_its_killed_parent(parent: "subprocess.Popen[bytes]") -> None:
    """`kill -9` of the parent ends the child."""
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), 90, "the child to end")


def test_child_of_a_parent_that_is_gone_already_does_not_start() -> None:
    """A parent that died before the child could tie itself leaves no child."""
    done = subprocess.run(tethered(SLEEP, parent=1 << 22), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_tether_hands_its_own_pid_to_its_children() -> None:
    """Without a parent named, a child expects the program that the tether above it became."""
    inner = tethered([sys.executable, "-c", "print('ran')"])
    code = f"import subprocess; subprocess.run({inner!r}, check=True)"
    done = subprocess.run(tethered_here([sys.executable, "-c", code]), capture_output=True, timeout=60, check=True)
    assert done.stdout == b"ran\n"


def test_bare_child_sees_no_secret() -> None:
    """`--bare` keeps our secrets from a program that has no business with them."""
    env = {"PATH": os.environ["PATH"], "SECRET_KEY": "s3cret"}
    code = "import os; print(sorted(os.environ))"
    command = tethered_here([sys.executable, "-c", code], options=["--bare"])
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "SECRET_KEY" not in done.stdout
    assert "PATH" in done.stdout


@pytest.mark.parametrize("options", [["--sgnal", "KILL"], ["--signal", "NOSUCH"]])
def test_a_wrong_option_is_refused(options: list[str]) -> None:
    """A mistyped option stops the start instead of being dropped."""
    done = subprocess.run(tethered_here(["true"], options=options), capture_output=True, timeout=60, check=False)
    assert done.returncode != 0


@root_only
def test_reach_passes_a_closed_folder_under_another_account(tmp_path: Path) -> None:
    """With `--reach` an unprivileged account works below a folder that only root may enter; without, it does not."""
    nobody = pwd.getpwnam("nobody")
    tmp_path.chmod(0o700)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, nobody.pw_uid, nobody.pw_gid)
    user = ["--user", f"{nobody.pw_uid}:{nobody.pw_gid}"]
    reached = subprocess.run(
        tethered_here(["/bin/ls", "-ld", str(own)], options=[*user, "--reach"]), capture_output=True, check=False
    )
    refused = subprocess.run(
        tethered_here(["/bin/ls", "-ld", str(own)], options=user), capture_output=True, check=False
    )
    assert (reached.returncode, refused.returncode != 0) == (0, True)


@root_only
def test_reach_keeps_nothing_but_the_passage() -> None:
    """The program has one capability and no way back to root."""
    nobody = pwd.getpwnam("nobody")
    options = ["--user", f"{nobody.pw_uid}:{nobody.pw_gid}", "--reach"]
    done = subprocess.run(
        tethered_here(["/bin/cat", "/proc/self/status"], options=options), capture_output=True, text=True, check=True
    )
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    dac_override = "0000000000000002"
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {dac_override}
    assert set(status["Uid"].split()) == {str(nobody.pw_uid)}


@root_only
def test_a_child_that_gave_up_root_is_still_tied() -> None:
    """Changing the account clears the tie in the kernel; the tether ties after it."""
    nobody = pwd.getpwnam("nobody")
    options = ["--user", f"{nobody.pw_uid}:{nobody.pw_gid}", "--reach"]
    code = (
        "import subprocess, sys, time\n"
        "from gateway.embedded.tethered import tethered_here\n"
        f"child = subprocess.Popen(tethered_here(['/bin/sleep', '600'], options={options!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        command = Path(f"/proc/{child}/cmdline")
        wait_for(lambda: command.read_bytes().startswith(b"/bin/sleep"), 90, "the child to start")
        parent.kill()
    wait_for(lambda: not command.exists(), 90, "the child to end")
