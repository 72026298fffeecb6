"""The fingerprint changes with what makes the same tokens give other keys and values, and with nothing else."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import make_scheduler
from engine.fingerprint import fingerprint
from engine.model.folder import read_folder
from engine.step import CacheShape
from tests.engine.fake_runner import FakeRunner
from tests.engine.model.checkpoints import make_checkpoint
from tests.engine.tiny_model import make_tiny_model

CONFIG = EngineConfig()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def of(path: Path, config: EngineConfig = CONFIG, **options: Any) -> str:
    """Return the fingerprint of a folder."""
    return fingerprint(read_folder(path, name="tiny", **options), config)


def test_other_settings_leave_it(tiny: Path, tmp_path: Path) -> None:
    """Place, name, tokenizer, pool, steps, device and kernels change no key or value by more than rounding."""
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    (copy / "tokenizer_config.json").write_text("{}")
    settings: dict[str, Any] = {
        "model": "somewhere",
        "model_name": "else",
        "dtype": "bfloat16",
        "device": "cpu",
        "backend": "reference",
        "kv_bytes": 1 << 20,
        "block_size": 8,
        "max_batched_tokens": 64,
        "max_context": 512,
        "threads": 1,
        "overlap": "on",
    }
    other = fingerprint(read_folder(copy, name="other", max_context=512), dataclasses.replace(CONFIG, **settings))
    assert other == of(tiny)
    assert len(other) == 64


def test_weights_and_configuration_change_it(tiny: Path, tmp_path: Path) -> None:
    """Other weights, other numbers in config.json, weights in eight bits, drawn weights: each has one of its own."""
    configured = Path(shutil.copytree(tiny, tmp_path / "configured"))
    config = json.loads((configured / "config.json").read_text())
    (configured / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    found = {
        of(tiny),
        of(make_tiny_model(tmp_path / "other", seed=1)),
        of(configured),
        of(tiny, dataclasses.replace(CONFIG, weight_dtype="int8")),
        of(tiny, dataclasses.replace(CONFIG, load_format="dummy"), dummy=True),
    }
    assert len(found) == 5


def test_longrope_turns_by_the_context_that_is_served(tmp_path: Path) -> None:
    """LongRoPE has other angles where contexts beyond the trained ones are served; how far beyond is all one."""
    path = make_checkpoint(tmp_path / "long", "phi3-longrope").path  # trained on 64 tokens
    within = {of(path, max_context=max_context) for max_context in (32, 64)}
    beyond = {of(path, max_context=max_context) for max_context in (0, 65, 128)}
    assert (len(within), len(beyond), within & beyond) == (1, 1, set())


def test_block_keys_carry_it(tiny: Path) -> None:
    """A prompt's blocks have other keys with other weights or another dtype, so that none is found for the other."""
    folder = read_folder(tiny, name="tiny")
    int8 = dataclasses.replace(CONFIG, weight_dtype="int8")
    shape = CacheShape(num_blocks=4, block_size=8, block_bytes=64, max_rows=2, max_columns=4)
    roots = {
        make_scheduler(config, folder, FakeRunner(shape), kv_format=kv_format).memory.lookup.hasher.root(b"namespace")
        for config in (CONFIG, int8)
        for kv_format in ("float32", "bfloat16")
    }
    assert len(roots) == 4
