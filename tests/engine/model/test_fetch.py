"""Conversion into the cache: once, whole or not at all, whatever crashes or starts beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.model.fetch import cache_dir
from engine.model.folder import resolve_model
from engine.model.runner import ModelRunner
from tests.engine.model.driver import Drive, generate
from tests.engine.model.tiny_gguf import write_gguf

ROOT = Path(__file__).resolve().parents[3]


def start(gguf: Path, cache: Path) -> subprocess.Popen[str]:
    """Prepare the file in a process of its own, its process group too."""
    environment = {**os.environ, "TOLLGATE_CACHE": str(cache), "ENGINE_MODEL": str(gguf), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "engine.model.folder"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]


def wait_for(path: Path, pattern: str) -> None:
    """Wait until something in `path` matches."""
    deadline = time.monotonic() + 120
    while not any(path.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern} in {path}"
        time.sleep(0.02)


def test_gguf_is_converted_once_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in mid-conversion, then started twice at once: one whole folder, nothing else, and it generates."""
    gguf, cache = write_gguf(tmp_path / "Tiny.Q8.gguf"), tmp_path / "cache"
    killed = start(gguf, cache)
    wait_for(cache / "models", ".tiny.q8-*")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    starters = [start(gguf, cache) for _ in range(2)]
    outputs = [starter.communicate(timeout=200) for starter in starters]
    assert [starter.returncode for starter in starters] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sum("preparing" in errors for _, errors in outputs) == 1
    folders = [path.name for path in (cache / "models").iterdir() if path.is_dir()]
    assert len(folders) == 1 and not folders[0].startswith(".")
    monkeypatch.setenv("TOLLGATE_CACHE", str(cache))
    config = EngineConfig(model=str(gguf), dtype="float32", kv_bytes=1 << 20, threads=1, poison=True)
    folder = resolve_model(config)
    assert (folder.name, folder.eos_token_ids, folder.max_context_tokens) == ("tiny.q8", (2,), 512)
    assert "message['content']" in folder.chat_template
    assert json.loads(folder.tokenizer_json)["pre_tokenizer"]["pretokenizers"][0]["type"] == "Digits"
    assert len(generate(ModelRunner(config, folder), [[5, 6, 7]], Drive(num_tokens=3))[0]) == 3


def test_file_that_is_no_gguf_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken file is refused with its name, and no folder stays behind."""
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path / "cache"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match=r"cannot convert broken\.gguf"):
        resolve_model(EngineConfig(model=str(broken)))
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]


def test_unwritable_cache_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be made is refused with the setting that moves it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set TOLLGATE_CACHE"):
        resolve_model(EngineConfig(model=str(write_gguf(tmp_path / "a.gguf"))))


def test_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing says where a cache may be, the message names the setting."""
    monkeypatch.delenv("TOLLGATE_CACHE", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # in no list of users
    with pytest.raises(ModelError, match="set TOLLGATE_CACHE"):
        cache_dir()
