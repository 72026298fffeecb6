"""What `bench.gpu` checks of the runner, on the interpreted Triton kernels."""

from pathlib import Path

from bench.gpu_engine import agree


def test_runner_agrees_with_the_reference(tmp_path: Path) -> None:
    """Triton's tokens are the reference's, kernel by kernel and by graphs, in turn and ahead."""
    findings = list(agree(tmp_path, tiny=True))
    assert [finding.problem for finding in findings if not finding.right] == []
    assert len({finding.case for finding in findings}) == 4
