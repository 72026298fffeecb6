"""Compile the C++ kernels: `python -m kernels.cpu.build`. Idempotent; a few seconds the first time.

The library lands in `$TOLLGATE_CACHE/kernels` (default `~/.cache/tollgate/kernels`) under the hash of what made it: a
change of source or flags builds anew, and a finished one is never written to again.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kernels.errors import BackendUnavailable

_SOURCES = Path(__file__).parent / "src"
_COMPILE = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi", "-c")
_LINK = ("-shared",)  # without -fopenmp: the OpenMP runtime is torch's


def library() -> Path:
    """Return the compiled library, building it when it is missing.

    Raises:
        BackendUnavailable: there is no compiler, or it failed, or there is no cache or it cannot be written.
    """
    target = _target()
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                made = _compile(_compiler(), Path(scratch))
                _flush(made)
                made.replace(target)
        except OSError as error:
            raise BackendUnavailable(f"cannot write {target.parent}: {error}; set TOLLGATE_CACHE") from error
    return target


def _flush(made: Path) -> None:
    """See to it that the bytes are on disk before the name is: half a library kills whoever loads it."""
    with made.open("rb") as file:
        os.fsync(file.fileno())


def _target() -> Path:
    digest = hashlib.sha256()
    parts = [*_COMPILE, *_LINK, platform.machine(), *platform.libc_ver(), os.environ.get("CXX", "")]
    digest.update("\0".join(parts).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return _cache() / "kernels" / f"tollgate_cpu-{digest.hexdigest()[:24]}.so"


def _cache() -> Path:
    try:
        return Path(os.environ.get("TOLLGATE_CACHE") or Path.home() / ".cache" / "tollgate").expanduser()
    except RuntimeError as error:  # a user without a home, as containers may have
        raise BackendUnavailable(f"no folder for the library: {error}; set TOLLGATE_CACHE") from error


def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX") or "g++")
    if found is None:
        raise BackendUnavailable("no C++ compiler: install g++, or name one in CXX")
    return found


def _compile(compiler: str, scratch: Path) -> Path:
    unit, linked = scratch / "kernels.o", scratch / "kernels.so"
    for command in (
        [compiler, *_COMPILE, str(_SOURCES / "kernels.cpp"), "-o", str(unit)],
        [compiler, *_LINK, str(unit), "-o", str(linked)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BackendUnavailable(f"{compiler} failed: {done.stderr.strip()[-2000:]}")
    return linked


def main() -> int:
    """Build and print where the library is; without a compiler say what serves instead."""
    try:
        print(f"kernels: {library()}")
    except BackendUnavailable as reason:
        print(f"kernels: {reason}; the reference kernels serve, several times slower", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
