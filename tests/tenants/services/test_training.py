"""The training job: where a worker's state folder is at hand it starts a child, elsewhere it says why not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.trace.ring import FILE_NAME, RingWriter
from engine.train.published import METRICS_FILE
from tenants.services.training import train
from tenants.tasks import train_reuse_predictor


@pytest.mark.parametrize(
    ("state_dir", "seconds", "said"), [("", 60, "ENGINE_STATE_DIR"), ("{}", 60, "no trace"), ("{}", 0, "0")]
)
def test_where_there_is_nothing_to_train_it_says_so(tmp_path: Path, state_dir: str, seconds: int, said: str) -> None:
    """No folder, a folder without a trace, or training turned off: skipped, with the reason."""
    done = train(state_dir.format(tmp_path), seconds)
    assert done.outcome == "skipped"
    assert said in done.reason


def test_a_trace_with_nothing_in_it_teaches_nothing(tmp_path: Path) -> None:
    """The child runs, publishes no model and tells why; how it went lies in the folder."""
    RingWriter(tmp_path / FILE_NAME, 1 << 20).close()
    done = train(str(tmp_path), 30)
    assert done.outcome == "not_published"
    assert "No request" in done.reason
    assert json.loads((tmp_path / METRICS_FILE).read_text())["reason"] == done.reason
    assert not (tmp_path / "reuse.json").exists()


def test_a_child_that_fails_is_told_of(tmp_path: Path) -> None:
    """What it wrote to stderr last is the reason."""
    (tmp_path / FILE_NAME).touch()
    done = train(str(tmp_path), 10**6)
    assert done.outcome == "failed"
    assert "--seconds" in done.reason


def test_the_task_reads_the_settings(settings: object, tmp_path: Path) -> None:
    """Celery's task trains the worker that the settings name."""
    settings.ENGINE_STATE_DIR, settings.TRAIN_SECONDS = str(tmp_path), 5  # type: ignore[attr-defined]
    assert train_reuse_predictor() == "skipped"


def test_the_control_plane_imports_no_torch() -> None:
    """Neither the tasks nor the eviction orders bring torch in."""
    code = (
        "import sys, django; django.setup(); import tenants.tasks, engine.memory.manager, engine.train.published;"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "DJANGO_SETTINGS_MODULE": "gateway.settings"}
    )
    assert done.returncode == 0
