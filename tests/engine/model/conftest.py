"""The real model, loaded once for all tests that need it; they run in one process (xdist group "exact")."""

import pytest
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.model.folder import ModelFolder, resolve_model
from tests.engine.model.checkpoints import oracle


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """The default model."""
    return resolve_model(EngineConfig())


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2: ModelFolder) -> PreTrainedModel:
    """The same weights in transformers, float32."""
    return oracle(smollm2)
