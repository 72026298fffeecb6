"""Other families on the real engine: greedy tokens are transformers' own with everything turned on at once."""

import pytest

from tests.engine.model.checkpoints import (
    FAMILIES,
    OTHERS,
    assert_greedy,
    make_checkpoint,
    make_other,
    oracle,
    prompt_of,
)
from tests.engine.model.serving import Serving

MODELS = ["mistral-window", "smollm3-window", "phi3-partial", "gemma2", "gemma3", "gpt_neox", "starcoder2", "cohere2"]
STEM = prompt_of(53, seed=1)
PROMPTS = [STEM + prompt_of(length, seed=2) for length in (1, 3, 8, 11, 19, 24)]  # blocks of 8: some end in mid-block


@pytest.mark.parametrize("model", MODELS)
def test_greedy_is_transformers_own(tmp_path_factory: pytest.TempPathFactory, model: str) -> None:
    """A shared stem, forks, chunks beside decodes, a pool too small for all: each output is the model's own, and no
    step reads a slot before a window that another request has overwritten since.
    """
    assert (model in FAMILIES) != (model in OTHERS)
    make = make_checkpoint if model in FAMILIES else make_other
    folder = make(tmp_path_factory.mktemp(model), model)
    serving = Serving(folder, num_blocks=30, budget=24, overcommits=True)
    sampling = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    handles = [serving.submit(prompt, n=2, shares=True, **sampling) for prompt in PROMPTS]
    serving.run()
    assert serving.num_preemptions > 0
    assert sum(serving.cached_tokens.values()) > 0
    truth = oracle(folder)
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        outputs = [serving.tokens[handle, index] for index in range(2)]
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) == 24
        assert_greedy(truth, prompt, outputs[0])
