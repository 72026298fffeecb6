"""Requests as the core knows them: token ids, sampling and limits, no text and no sockets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)
SequenceId = NewType("SequenceId", int)
BlockId = NewType("BlockId", int)
SlabId = NewType("SlabId", int)  # room for one block in host memory


class Priority(StrEnum):
    """Service class of a request; interactive goes first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class RefusalCode(StrEnum):
    """Why a request was not taken; the same names as the protocol's `RefusalCode`."""

    INVALID = "invalid"
    CONTEXT_TOO_LONG = "context_too_long"
    KV_LIMIT = "kv_limit"
    QUEUE_FULL = "queue_full"
    NO_POLICY = "no_policy"
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"


class GrammarKind(StrEnum):
    """In what language a grammar is written; the same names as the protocol's `Grammar.Kind`."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must be, whole."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when generation ends.

    `max_tokens` 0 means as many as context and limits allow; `temperature` 0 is greedy; `top_p` 1, `top_k` 0 are off.
    """

    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    num_logprobs: int = -1  # most likely tokens to report beside the chosen one; -1: no log-probabilities at all
    prompt_logprobs: int = -1  # the same for the prompt's tokens
    min_p: float = 0.0  # tokens below this share of the likeliest one's probability are out; 0 is off
    min_tokens: int = 0  # no end token before so many
    frequency_penalty: float = 0.0  # subtracted from a token's logit for each time the output has it
    presence_penalty: float = 0.0  # subtracted once for each token that the output has
    repetition_penalty: float = 1.0  # divides positive logits of tokens that prompt or output have, multiplies others
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    grammar: Grammar | None = None  # what the output must be

    @property
    def penalises(self) -> bool:
        """Whether tokens that were there before are less likely, or more."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def looks_back(self) -> bool:
        """Whether the choice depends on the tokens before it, beside what the model makes of them."""
        return self.grammar is not None or self.penalises


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """Beam search over `width` continuations instead of sampling; the request's `n` best are its outputs.

    A finished continuation scores its summed log-probability ÷ (output tokens ** length_penalty). The search ends when
    `width` have finished and, unless `early_stopping`, no running one can still beat the worst of them.
    """

    width: int  # at least 2, and at least the request's `n`
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request as submitted. `arrived_at` is in the core's monotonic seconds; `deadline` 0 means none."""

    request_id: RequestId
    tenant: TenantId
    namespace: bytes
    prompt: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = Priority.STANDARD
    session: str = ""
    session_seconds: float = 0.0  # how long the session is kept after this turn; 0: the worker's default
    deadline: float = 0.0
    arrived_at: float = 0.0
    policy_version: int = 0
    n: int = 1  # outputs of the one prompt
    beams: BeamParams | None = None  # None: each output is sampled on its own
    embed: bool = False  # generate nothing: the mean of the prompt's last hidden states is asked for
