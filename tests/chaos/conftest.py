"""A tiny checkpoint for instances of `manage.py up` that a test breaks."""

from pathlib import Path

import pytest

from tests.engine.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings that make the engine serve a tiny random checkpoint."""
    model: Path = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return {"ENGINE_MODEL": str(model)}
