"""Tie a process to its parent's life, then become the program: `python -I -S tether.py [options] -- program args`.

Every child of embedded mode starts through this file, so that a `kill -9` of its parent takes it along. It runs as a
bare script (no site packages, nothing of ours) because it stands in front of every start.

Options:
    --signal NAME    what the kernel sends when the parent dies (KILL)
    --parent PID     the parent to be tied to; default: $TOLLGATE_PARENT_PID, which a tether sets for its children
    --user UID:GID   give up root for this account first
    --reach          keep the right to pass folders that the account may not enter (a checkout below a 0700 folder)
    --bare           hand on none of the environment but PATH and LANG: the program has no business with our secrets
"""

import ctypes
import os
import signal
import struct
import sys

PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
PARENT_VARIABLE = "TOLLGATE_PARENT_PID"

_libc = ctypes.CDLL(None, use_errno=True)


def tie(signum: int, parent: int) -> None:
    """Have the kernel send `signum` when the parent dies; exit at once when it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signum)
    if parent and os.getppid() != parent:
        os._exit(1)


def become(uid: int, gid: int, *, reach: bool) -> None:
    """Drop root for `uid`; with `reach`, keep only the capability to pass closed folders, across exec too."""
    if reach:
        # Else `access()`, by which initdb looks for its server, would leave the capability out of account.
        _prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if reach:
        bit = 1 << CAP_DAC_OVERRIDE
        header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
        data = struct.pack("6I", bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; low then high words
        if _libc.capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def main(argv: list[str]) -> None:
    """Parse the options, tie, drop root, exec. Does not return."""
    split = argv.index("--")
    signum, parent, user = signal.SIGKILL, int(os.environ.get(PARENT_VARIABLE, "0")), ""
    flags = set()
    pending = iter(argv[:split])
    for option in pending:
        if option == "--signal":
            signum = signal.Signals[f"SIG{next(pending)}"]
        elif option == "--parent":
            parent = int(next(pending))
        elif option == "--user":
            user = next(pending)
        else:
            flags.add(option)
    if unknown := flags - {"--reach", "--bare"}:
        raise SystemExit(f"tether: unknown options {sorted(unknown)}")
    if user:
        uid, gid = (int(part) for part in user.split(":"))
        become(uid, gid, reach="--reach" in flags)
    tie(signum, parent)  # last: changing the user clears it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    program = argv[split + 1 :]
    os.execvpe(program[0], program, _environment(bare="--bare" in flags))  # noqa: S606  # the point of this file


def _environment(*, bare: bool) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not bare or name in ("PATH", "LANG")}
    return kept | {PARENT_VARIABLE: str(os.getpid())}


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


if __name__ == "__main__":
    main(sys.argv[1:])
