"""Scheduler and runner as they work on a GPU: planned ahead, staged, two tables, decodes by graphs. Poison is on."""

from pathlib import Path

import pytest

from engine.model import runner
from tests.engine.model.device_like import Rerun, device_like
from tests.engine.test_exact_ahead import drive
from tests.engine.tiny_model import make_tiny_model


def test_text_is_that_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, seeded, several outputs, beams and log-probabilities, in a pool too small for them, with preemptions and
    limits that move: each output has the text and the end that it has on the CPU, one step after the other.
    """
    model = make_tiny_model(tmp_path / "tiny", seed=2)
    expected, _ = drive(model, ahead=False, num_blocks=64, moves=False)
    rerun = Rerun()
    monkeypatch.setattr(runner, "link_to", lambda device: device_like(rerun))
    found, scheduler = drive(model, ahead=True)
    assert found.num_placeholders > 50
    assert scheduler.roster.num_preemptions > 3
    assert len(set(rerun.replays)) > 2
    assert found.tokens == expected.tokens
    assert found.ends == expected.ends
