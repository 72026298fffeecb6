"""What sampling parameters may be: pure checks of one request's, whoever sent it."""

import math

from engine.request import RefusalCode, SamplingParams
from engine.scheduler.outputs import Refusal

MAX_LOGPROBS = 128  # most likely tokens to report at each position
MAX_STOP_TOKENS = 1024  # ids of a request: a step names them to the device while they are banned
MAX_BIASED_TOKENS = 1024  # of a request: every step brings them to the device
MAX_BIAS = 100.0  # either way
MAX_PENALTY = 2.0  # either way, for each time a token was there, and for once
LEAST_REPETITION, MOST_REPETITION = 0.01, 10.0
_FLOAT32 = 1e-7  # what the least may lack after a way as one


def check_sampling(sampling: SamplingParams, vocab_size: int) -> Refusal | None:
    """Return what is wrong with the parameters, for a model with so many tokens."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return _refusal("temperature", "must be a number of at least 0.")
    if not 0 < sampling.top_p <= 1:
        return _refusal("top_p", "must be above 0 and at most 1.")
    if sampling.top_k < 0:
        return _refusal("top_k", "must be at least 0; 0 turns it off.")
    if not 0 <= sampling.min_p <= 1:
        return _refusal("min_p", "must be from 0 to 1; 0 turns it off.")
    if not -1 <= sampling.num_logprobs <= MAX_LOGPROBS:
        return _refusal("logprobs", f"must be from 0 to {MAX_LOGPROBS}, or left out.")
    if not -1 <= sampling.prompt_logprobs <= MAX_LOGPROBS:
        return _refusal("prompt_logprobs", f"must be from 0 to {MAX_LOGPROBS}, or left out.")
    if sampling.max_tokens < 0:
        return _refusal("max_tokens", "must be at least 1, or left out.")
    if sampling.min_tokens < 0:
        return _refusal("min_tokens", "must be at least 0.")
    if 0 < sampling.max_tokens < sampling.min_tokens:
        return _refusal("min_tokens", f"must be at most max_tokens, which is {sampling.max_tokens}.")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        return _refusal("stop_token_ids", f"must be at most {MAX_STOP_TOKENS} ids.")
    return _check_penalties(sampling) or _check_bias(sampling, vocab_size)


def changes_choice(sampling: SamplingParams) -> str:
    """Return the first parameter that changes what may be chosen beside temperature, top_p and top_k; empty: none."""
    changed = {
        "min_p": sampling.min_p,
        "min_tokens": sampling.min_tokens,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty - 1.0,
        "logit_bias": sampling.logit_bias,
        "grammar": sampling.grammar,
    }
    return next((name for name, value in changed.items() if value), "")


def _check_penalties(sampling: SamplingParams) -> Refusal | None:
    for name in ("frequency_penalty", "presence_penalty"):
        if not abs(getattr(sampling, name)) <= MAX_PENALTY:  # nan too
            return _refusal(name, f"must be a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}; 0 turns it off.")
    if not LEAST_REPETITION - _FLOAT32 <= sampling.repetition_penalty <= MOST_REPETITION:
        return _refusal(
            "repetition_penalty", f"must be from {LEAST_REPETITION} to {MOST_REPETITION:g}; 1 turns it off."
        )
    return None


def _check_bias(sampling: SamplingParams, vocab_size: int) -> Refusal | None:
    bias = sampling.logit_bias
    if not bias:
        return None
    if len(bias) > MAX_BIASED_TOKENS:
        return _refusal("logit_bias", f"has {len(bias)} tokens: give at most {MAX_BIASED_TOKENS} of them.")
    if len({token for token, _ in bias}) < len(bias):
        return _refusal("logit_bias", "names a token twice.")
    for token, value in bias:
        if not 0 <= token < vocab_size:
            return _refusal(
                "logit_bias", f"has token id {token}, but the model's vocabulary goes from 0 to {vocab_size - 1}."
            )
        if not abs(value) <= MAX_BIAS:  # nan too
            return _refusal("logit_bias", f"of token {token} must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g}.")
    return None


def _refusal(field: str, problem: str) -> Refusal:
    return Refusal(RefusalCode.INVALID, f"{field} {problem}", field)
