"""Settings of the worker: what each accepts, and what it says otherwise."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError


def test_the_disk_is_2_gib_in_the_state_folder_by_default() -> None:
    """A worker that was told nothing keeps what it parks beside its other state."""
    config = EngineConfig.from_env({"ENGINE_STATE_DIR": "/srv/worker-3"})
    assert config.disk_bytes == 2 << 30
    assert config.disk_folder == Path("/srv/worker-3/disk")


def test_the_disk_has_a_size_and_a_folder_of_its_own() -> None:
    """Bytes are written as for every other setting of bytes."""
    config = EngineConfig.from_env({"ENGINE_DISK_BYTES": "1.5 TiB", "ENGINE_DISK_DIR": "/nvme/kv"})
    assert config.disk_bytes == 3 << 39
    assert config.disk_folder == Path("/nvme/kv")
    assert EngineConfig.from_env({"ENGINE_DISK_BYTES": "0"}).disk_bytes == 0


@pytest.mark.parametrize("text", ["-1", "a lot", "2 GB", "1e9"])
def test_bytes_that_are_none_are_refused(text: str) -> None:
    """The message names the setting, its value and what it takes."""
    with pytest.raises(ConfigError, match=r"ENGINE_DISK_BYTES='.*': write a plain number of bytes or one with B, KiB"):
        EngineConfig.from_env({"ENGINE_DISK_BYTES": text})


def test_fewer_than_no_bytes_are_refused() -> None:
    """Also where they do not come from text."""
    with pytest.raises(ConfigError, match="ENGINE_DISK_BYTES=-1: must be at least 0"):
        EngineConfig(disk_bytes=-1)._check()


@pytest.mark.parametrize("text", ["-1", "20"])
def test_niceness_is_the_kernels(text: str) -> None:
    """A preview can be made to wait for an idle machine, and no more urgent than anything else."""
    assert EngineConfig.from_env({"ENGINE_PREVIEW_NICE": "7"}).preview_nice == 7
    with pytest.raises(ConfigError, match=f"ENGINE_PREVIEW_NICE={text}: must be from 0 to 19"):
        EngineConfig.from_env({"ENGINE_PREVIEW_NICE": text})
