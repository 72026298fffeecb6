"""What all surfaces that generate take: how to sample, how many outputs, and the rules that types don't hold."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.errors import BadRequest
from gateway.api.formats import Formatted
from tenants.errors import Invalid
from tenants.rules import sessions

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 64
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
LEAST_SESSION_SECONDS, MOST_SESSION_SECONDS = 60, 30 * 86400
MAX_OUTPUTS = 128  # of one prompt, as the worker has it
MAX_BEAMS = 64
MAX_LENGTH_PENALTY = 10.0  # as the worker has it: a length to this power is still a number
MAX_UINT32 = 2**32 - 1
MAX_COUNT = 2**31 - 1

TokenCount = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_UINT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopCount = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
ServiceTier = Literal["auto", "default", "flex", "priority", "fast"]

TIERS: dict[str | None, str] = {  # as a response names what a request asked for
    "auto": "default",
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}


def check_session(session: str, *, field: str) -> None:
    """Raise BadRequest where `field` holds no id that a session may have."""
    try:
        sessions.check(f"`{field}`", session)
    except Invalid as error:
        raise BadRequest(error.message, param=field) from error


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is told. `continuous_usage_stats` is vLLM's, and refused: usage is known at the end."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(Formatted, forbid_unknown_fields=True, kw_only=True):
    """What all surfaces share.

    Extensions to OpenAI's: `top_k`, `min_p`, `min_tokens`, `repetition_penalty`, `stop_token_ids` and `ignore_eos` as
    vLLM has them, `session_id` and `session_ttl`, and what `Formatted` says of them.

    A session is what OpenAI's `prompt_cache_key` names too; where both are given, `session_id` counts. `user`,
    `safety_identifier` and `metadata` are taken, and change nothing.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_UINT32)] | None = None  # 0 and vLLM's -1: off
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    session_ttl: Annotated[int, Meta(ge=LEAST_SESSION_SECONDS, le=MOST_SESSION_SECONDS)] | None = None
    service_tier: ServiceTier | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    metadata: Metadata | None = None

    @property
    def session(self) -> str:
        """The session that the request belongs to, or an empty string."""
        return self.session_id or self.prompt_cache_key or ""

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def obfuscated(self) -> bool:
        """Whether the stream's chunks are padded, so that their sizes say less about their texts."""
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)

    @property
    def tier(self) -> str:
        """The service tier as a response names it; empty: the request names none."""
        return TIERS.get(self.service_tier, "")

    @property
    def limit(self) -> int:
        """Tokens of output asked for; 0: as many as limits allow."""
        return self.max_tokens or 0

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        if self.stop is not None:
            self._check_stops()
        if self.session_id is not None or self.prompt_cache_key is not None or self.session_ttl is not None:
            self._check_session()
        if self.stream_options is not None:
            self._check_stream_options(self.stream_options)
        if self.min_tokens and 0 < self.limit < self.min_tokens:
            raise BadRequest(
                f"`min_tokens` is {self.min_tokens}, and the output may have {self.limit} at most: lower it",
                param="min_tokens",
            )
        self.check_format()

    def _check_stops(self) -> None:
        stops = self.stops
        if len(stops) > MAX_STOPS:
            raise BadRequest(f"`stop` has {len(stops)} entries: send at most {MAX_STOPS}", param="stop")
        if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
            raise BadRequest(f"`stop` takes texts of 1 to {MAX_STOP_CHARACTERS} characters", param="stop")

    def _check_stream_options(self, options: StreamOptions) -> None:
        if not self.stream:
            raise BadRequest("`stream_options` is only allowed when `stream` is true", param="stream_options")
        if options.continuous_usage_stats:
            field = "stream_options.continuous_usage_stats"
            raise BadRequest(f"`{field}` isn't supported: set `include_usage`, and read the last chunk", param=field)

    def _check_session(self) -> None:
        for name in ("session_id", "prompt_cache_key"):
            if (session := getattr(self, name)) is not None:
                check_session(session, field=name)
        if self.session_ttl is not None and not self.session:
            raise BadRequest(
                "`session_ttl` says how long a session is kept: name it in `session_id`, or leave `session_ttl` out",
                param="session_ttl",
            )


class Generating(Sampling, forbid_unknown_fields=True, kw_only=True):
    """What both completion surfaces share: how many outputs of a prompt. All but `n` are extensions.

    With `use_beam_search` a search over `beam_width` continuations finds the outputs, and nothing is sampled.
    """

    n: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)] | None = None
    use_beam_search: bool | None = None
    beam_width: Annotated[int, Meta(ge=2, le=MAX_BEAMS)] | None = None
    length_penalty: Annotated[float, Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None
    early_stopping: bool | None = None

    @property
    def num_outputs(self) -> int:
        """Outputs that come back of one prompt."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """Outputs that are generated at once for one prompt; those that don't come back cost tokens too."""
        return max(self.num_outputs, self.num_beams)

    @property
    def num_beams(self) -> int:
        """Width of the beam search, 0: none. Where only `n` is given it is the width, but one beam is no search."""
        return (self.beam_width or max(self.num_outputs, 2)) if self.use_beam_search else 0

    @property
    def top_scores(self) -> int | None:
        """How many of the likeliest tokens are told beside each token's log-probability; None: not even that."""
        return None

    @property
    def scores_field(self) -> str:
        """The field that says `top_scores`."""
        return "logprobs"

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        if self.use_beam_search:
            self._check_beams()
            return
        for name, off in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(self, name) not in (None, off):
                raise BadRequest(
                    f"`{name}` belongs to beam search: set `use_beam_search` to true, or leave it out", param=name
                )

    def _check_beams(self) -> None:
        """Refuse what a beam search, which samples nothing and compares whole token sequences, would have to ignore."""
        unfit = {
            "temperature": self.temperature not in (None, 0, 1),
            "top_p": self.top_p not in (None, 1),
            "top_k": self.top_k not in (None, 0, -1),
            "min_p": bool(self.min_p),
            "min_tokens": bool(self.min_tokens),
            "frequency_penalty": bool(self.frequency_penalty),
            "presence_penalty": bool(self.presence_penalty),
            "repetition_penalty": self.repetition_penalty not in (None, 1),
            "logit_bias": bool(self.logit_bias),
            "seed": self.seed is not None,
            "stop": bool(self.stops),
        }
        unfit |= dict.fromkeys(self.format_fields, True)
        for name, given in unfit.items():
            if given:
                raise BadRequest(f"`{name}` can't be combined with `use_beam_search`: leave it out", param=name)
        if self.num_outputs > MAX_BEAMS:
            raise BadRequest(f"`n` is {self.n}: a beam search gives at most {MAX_BEAMS} outputs", param="n")
        if self.num_beams < self.num_outputs:
            raise BadRequest(
                f"`beam_width` is {self.beam_width} and `n` {self.n}: a search gives at most as many outputs as it has "
                "beams, raise `beam_width`",
                param="beam_width",
            )
