"""The bookkeeping of a beam search by itself, against a search that keeps everything, and against `transformers`."""

import random

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from engine.request import BeamParams
from engine.scheduler.beams import BeamSearch, num_candidates
from tests.engine.beam_reference import reference
from tests.engine.fake_runner import distribution, most_likely

VOCAB_SIZE = 200


def run(
    prompt: list[int], params: BeamParams, *, stop_ids: frozenset[int], max_tokens: int, vocab_size: int = VOCAB_SIZE
) -> tuple[BeamSearch, int]:
    """Drive a search with the candidates that it asks for; return it at its end with its number of steps."""
    search = BeamSearch(params, stop_ids=stop_ids, max_tokens=max_tokens)
    count = num_candidates(params, stop_ids)
    beams: list[list[int]] = [[]]
    while beams:
        found = [most_likely(distribution([*prompt, *one], vocab_size=vocab_size), count) for one in beams]
        beams = [[*beams[parent], token] for parent, token in search.advance(found)]
        assert len(beams) <= params.width
    return search, search.num_steps


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.5, 2.5])
def test_finds_what_a_full_search_finds(early_stopping: bool, length_penalty: float) -> None:
    """For any width, with none, one or very many stop tokens, and with as little as one token to generate."""
    chance = random.Random(length_penalty + early_stopping)
    for _ in range(25):
        width = chance.randint(2, 7)
        params = BeamParams(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
        prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(1, 12))]
        stop_ids = frozenset(chance.sample(range(VOCAB_SIZE), chance.choice((0, 1, 8, 60, 150))))
        max_tokens = chance.choice((1, 2, 12))
        search, num_steps = run(prompt, params, stop_ids=stop_ids, max_tokens=max_tokens)
        expected, expected_steps = reference(
            prompt, params, n=width, stop_ids=stop_ids, max_tokens=max_tokens, vocab_size=VOCAB_SIZE
        )
        found = search.best(width)
        assert num_steps == expected_steps
        assert [list(one.token_ids) for one in found] == [one.tokens for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected])
        for one in found:
            assert one.stopped == (one.token_ids[-1] in stop_ids)
            assert sum(one.logprobs) / len(one.token_ids) ** length_penalty == pytest.approx(one.score)


def test_almost_only_stop_tokens() -> None:
    """Where fewer beams can go on than the search has room for, it goes on with those, or ends."""
    for num_stops in (VOCAB_SIZE - 2, VOCAB_SIZE):
        stop_ids = frozenset(range(num_stops))
        search, _ = run([3], BeamParams(width=5, length_penalty=1.0), stop_ids=stop_ids, max_tokens=4)
        found = search.best(5)
        assert len(found) == 5
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_before_the_end_the_beams_compete_as_they_are() -> None:
    """What is cut short returns the best so far: unfinished ones too, none twice."""
    search = BeamSearch(BeamParams(width=3), stop_ids=frozenset({1}), max_tokens=10)
    assert search.best(3) == []
    search.advance([((1, -0.1), (2, -1.0), (3, -2.0), (4, -3.0))])
    found = search.best(3)
    assert [(one.token_ids, one.stopped) for one in found] == [((1,), True), ((2,), False), ((3,), False)]
    assert [one.score for one in found] == [-0.1, -1.0, -2.0]


def test_ties_go_by_beam_and_then_by_the_models_order() -> None:
    """Equal sums never swap from run to run."""
    search = BeamSearch(BeamParams(width=2), stop_ids=frozenset(), max_tokens=10)
    search.advance([((7, -1.0), (9, -1.0))])
    branches = search.advance([((5, -1.0), (6, -1.0)), ((2, -1.0), (3, -1.0))])
    assert [tuple(one) for one in branches] == [(0, 5), (0, 6)]


class Config(PretrainedConfig):
    """Of a model without layers."""

    model_type = "fake"
    vocab_size = VOCAB_SIZE
    is_encoder_decoder = False


class Model(PreTrainedModel, GenerationMixin):
    """The fake runner's distribution as a model of `transformers`."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: object) -> CausalLMOutput:
        """Return logits of the last position."""
        rows = [distribution(row, vocab_size=VOCAB_SIZE) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.from_numpy(np.stack(rows)).float()[:, None, :])

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: object
    ) -> dict[str, torch.Tensor]:
        """Compute everything each time: there is no cache."""
        return {"input_ids": input_ids}


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
def test_finds_what_transformers_finds(early_stopping: bool, length_penalty: float) -> None:
    """The same sequences with the same scores, in the same order."""
    model = Model(Config())
    chance = random.Random(5)
    for _ in range(6):
        prompt = [chance.randrange(VOCAB_SIZE) for _ in range(4)]
        stops = sorted(chance.sample(range(VOCAB_SIZE), chance.choice((1, 12))))
        width = chance.randint(2, 5)
        config = GenerationConfig(
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=8,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=stops,
            pad_token_id=stops[0],
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        inputs = torch.tensor([prompt])
        theirs = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=config)
        params = BeamParams(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
        search, _ = run(prompt, params, stop_ids=frozenset(stops), max_tokens=8)
        ours = search.best(width)
        for row, one in zip(theirs.sequences.tolist(), ours, strict=True):
            assert tuple(row[4 : 4 + len(one.token_ids)]) == one.token_ids
            assert set(row[4 + len(one.token_ids) :]) <= {stops[0]}
        assert [one.score for one in ours] == pytest.approx(theirs.sequences_scores.tolist(), rel=1e-4)
