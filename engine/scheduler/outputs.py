"""What the scheduler reports of a request: plain data, one for each request that a step changed."""

from typing import NamedTuple

from engine.request import FinishReason, RefusalCode, SequenceId
from engine.step import TokenLogprobs


class Refusal(NamedTuple):
    """Why a request is not taken; the message names the limit, the need and the way out."""

    code: RefusalCode
    message: str
    field: str = ""


Ranking = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities, best first."""


class OutputExtras(NamedTuple):
    """What few requests ask for beside tokens."""

    top: tuple[Ranking, ...] = ()  # of each of `token_ids`, where likely tokens are asked for
    prompt: tuple[TokenLogprobs, ...] = ()  # of more of the prompt's tokens, from the second on; all before a token
    embedding: tuple[float, ...] = ()  # with the end of a request to embed


class RequestOutput(NamedTuple):
    """News of one output of a request. A finish reason is its last one; a refusal is the last one of the request.

    `token_ids` holds every sampled token, the end-of-turn or stop token included; `logprobs` has one number for each of
    them where the request asks for log-probabilities, and is empty where it does not.

    `kv_byte_seconds` counts each block that the request's outputs share for one of them: their sum is what the request
    holds. A block that the prefix cache lets several requests share counts for each of them.

    A beam search reports how many tokens its beams have grown by, and everything else at its end.
    """

    sequence: SequenceId
    token_ids: tuple[int, ...] = ()
    kv_byte_seconds: float = 0.0  # cumulative
    num_preemptions: int = 0  # cumulative
    output_index: int = 0  # which of the request's `n` outputs
    admitted_max_tokens: int = 0  # > 0 once, when the request first runs
    queue_seconds: float = 0.0  # with the admission
    cached_tokens: int = 0  # with the admission: prompt tokens that were not computed
    finish_reason: FinishReason | None = None
    refusal: Refusal | None = None
    message: str = ""
    field: str = ""  # with an error that is the request's own fault: where
    logprobs: tuple[float, ...] = ()  # natural; of the sampled tokens under the model's own distribution
    unseen_tokens: int = 0  # beam search: tokens generated that no output has shown
    score: float = 0.0  # beam search, with the end: what its outputs are ranked by
    extras: OutputExtras | None = None  # None for nearly all
