"""A request while the core works on it: what it asks for, its counters and its outputs."""

import time
from dataclasses import dataclass, field

from engine import ipc
from engine.front.connection import Stream
from engine.front.meter import Metered
from engine.front.outputs import Outputs
from engine.front.policies import NAMESPACE_BYTES, PRIORITY
from engine.front.sessions import SESSION_MAX_BYTES, session_problem
from engine.front.table import Counters, Identity
from engine.protocol import pb
from engine.request import GrammarKind, Priority

GRAMMAR_KIND = {
    pb.Grammar.KIND_JSON_SCHEMA: GrammarKind.JSON_SCHEMA,
    pb.Grammar.KIND_REGEX: GrammarKind.REGEX,
    pb.Grammar.KIND_LARK: GrammarKind.LARK,
}
_ID_MAX_BYTES = {"request_id": 128, "tenant": 128, "project": 128, "key": 128, "session": SESSION_MAX_BYTES}
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 4096
_MAX_ALL_STOPS_CHARACTERS = 16384
_MAX_STOP_TOKENS = 1024
_MAX_BIASED_TOKENS = 1024
_MAX_BIAS = 100.0  # either way
_BOUNDS = {  # of numbers in `Sampling`
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
_NOT_FOR_BEAMS = ("min_p", "min_tokens", "frequency_penalty", "presence_penalty", "logit_bias")
_LEAST_REPETITION, _MOST_REPETITION = 0.01, 10.0
_FLOAT32 = 1e-7  # what 0.01 may lack as one
_MAX_OUTPUTS = 128
_MIN_BEAMS, _MAX_BEAMS = 2, 64
_MAX_SESSION_SECONDS = 30 * 86400
_MAX_LENGTH_PENALTY = 16.0  # a length to this power is still a number


class InvalidSubmitError(ValueError):
    """A submit that no worker would take; `field` names what to change."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """One running request. `handle` is the front's number for it, which no other request ever gets."""

    handle: int
    stream: Stream
    metered: Metered
    counters: Counters
    outputs: Outputs
    prompt_tokens: int
    submitted: float = field(default_factory=time.monotonic)

    def moment(self) -> float:
        """Return unix seconds, counted on from its start: a clock that is set meanwhile does not change its length."""
        return self.counters.started_at + time.monotonic() - self.submitted

    def count(self) -> None:
        """Bring the counters in line with the outputs."""
        counters, outputs = self.counters, self.outputs
        if outputs.num_tokens and not counters.completion_tokens:
            counters.ttft_seconds = time.monotonic() - self.submitted
        counters.completion_tokens = outputs.num_tokens
        counters.kv_device_byte_seconds, counters.num_preemptions = outputs.used
        counters.finished_at = self.moment()


def num_outputs(submit: pb.Submit) -> int:
    """Return how many outputs come back."""
    return submit.n or 1


def num_generated(submit: pb.Submit) -> int:
    """Return how many outputs the core is asked for."""
    return max(num_outputs(submit), submit.best_of)


def check_submit(submit: pb.Submit, vocab_size: int) -> None:
    """Refuse what cannot be a request, whatever the policy.

    Raises:
        InvalidSubmitError: names the field and the fix.
    """
    _check_ids(submit)
    if len(submit.namespace) != NAMESPACE_BYTES:
        raise InvalidSubmitError(
            "namespace", f"namespace has {len(submit.namespace)} bytes instead of {NAMESPACE_BYTES}"
        )
    if not submit.token_ids:
        raise InvalidSubmitError("prompt", "the prompt has no tokens: send at least one")
    if max(submit.token_ids) >= vocab_size:
        raise InvalidSubmitError(
            "prompt", f"the prompt has a token id >= {vocab_size}, the size of this model's vocabulary"
        )
    if submit.HasField("sampling"):
        _check_sampling(submit.sampling, vocab_size)
    if submit.n > _MAX_OUTPUTS:
        raise InvalidSubmitError("n", f"n is {submit.n}: ask for at most {_MAX_OUTPUTS} outputs")
    if submit.best_of and not num_outputs(submit) <= submit.best_of <= _MAX_OUTPUTS:
        raise InvalidSubmitError(
            "best_of", f"best_of is {submit.best_of}: choose n, which is {num_outputs(submit)}, to {_MAX_OUTPUTS}"
        )
    if submit.HasField("beam_search"):
        _check_beams(submit)
    if submit.embed:
        _check_embed(submit)


def _check_ids(submit: pb.Submit) -> None:
    for name, limit in _ID_MAX_BYTES.items():
        if len(getattr(submit, name).encode()) > limit:
            raise InvalidSubmitError(name, f"{name} is longer than {limit} bytes")
    for name in ("request_id", "tenant"):
        if not getattr(submit, name):
            raise InvalidSubmitError(name, f"{name} is empty: every request carries one")
    if problem := session_problem(submit.session):
        raise InvalidSubmitError("session", f"session {problem}")
    if not 0 <= submit.session_seconds <= _MAX_SESSION_SECONDS:  # nor is it NaN
        raise InvalidSubmitError(
            "session_ttl", f"session_ttl is {submit.session_seconds}: choose 0 to {_MAX_SESSION_SECONDS} seconds"
        )


def _check_embed(submit: pb.Submit) -> None:
    sampling = submit.sampling
    asked = {
        "n": num_outputs(submit) > 1,
        "best_of": submit.best_of > 1,
        "beam_width": submit.HasField("beam_search"),
        "grammar": sampling.HasField("grammar"),
        "logprobs": sampling.HasField("logprobs"),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InvalidSubmitError(name, f"{name} is of no use to a request to embed, which generates nothing")


def _check_beams(submit: pb.Submit) -> None:
    search = submit.beam_search
    if not max(_MIN_BEAMS, num_outputs(submit)) <= search.width <= _MAX_BEAMS:
        raise InvalidSubmitError(
            "beam_width",
            f"beam_width is {search.width}: choose {_MIN_BEAMS} to {_MAX_BEAMS}, and at least n, which is"
            f" {num_outputs(submit)}",
        )
    if not abs(search.length_penalty) <= _MAX_LENGTH_PENALTY:  # nor is it NaN
        raise InvalidSubmitError(
            "length_penalty",
            f"length_penalty is {search.length_penalty}: choose {-_MAX_LENGTH_PENALTY} to {_MAX_LENGTH_PENALTY}",
        )
    if submit.best_of > num_outputs(submit):
        raise InvalidSubmitError("best_of", "best_of chooses among sampled outputs: leave it out of a beam search")
    if submit.sampling.stop:
        raise InvalidSubmitError("stop", "stop strings cannot end a beam: use stop_token_ids in a beam search")
    for name in _NOT_FOR_BEAMS:
        if getattr(submit.sampling, name):
            raise InvalidSubmitError(name, f"{name} changes what is sampled: leave it out of a beam search")
    if submit.sampling.repetition_penalty not in (0.0, 1.0):
        raise InvalidSubmitError(
            "repetition_penalty", "repetition_penalty changes what is sampled: leave it out of a beam search"
        )
    if submit.sampling.HasField("grammar"):
        raise InvalidSubmitError("grammar", "beams follow no grammar: leave it out of a beam search")


def _check_sampling(sampling: pb.Sampling, vocab_size: int) -> None:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(sampling, name)
        if not least <= value <= most:  # nor is it NaN
            raise InvalidSubmitError(name, f"{name} is {value:g}: choose {least:g} to {most:g}")
    repetition = sampling.repetition_penalty
    if repetition != 0 and not _LEAST_REPETITION - _FLOAT32 <= repetition <= _MOST_REPETITION:
        raise InvalidSubmitError(
            "repetition_penalty",
            f"repetition_penalty is {repetition:g}: choose {_LEAST_REPETITION:g} to {_MOST_REPETITION:g}; 1 is off",
        )
    if 0 < sampling.max_tokens < sampling.min_tokens:
        raise InvalidSubmitError(
            "min_tokens",
            f"min_tokens is {sampling.min_tokens}: choose at most max_tokens, which is {sampling.max_tokens}",
        )
    _check_bias(sampling, vocab_size)
    _check_stops(sampling, vocab_size)


def _check_bias(sampling: pb.Sampling, vocab_size: int) -> None:
    bias = sampling.logit_bias
    if len(bias) > _MAX_BIASED_TOKENS:
        raise InvalidSubmitError(
            "logit_bias", f"logit_bias has {len(bias)} tokens: give at most {_MAX_BIASED_TOKENS} of them"
        )
    for token, value in bias.items():
        if token >= vocab_size:
            raise InvalidSubmitError(
                "logit_bias",
                f"logit_bias has the token id {token}: this model's vocabulary goes from 0 to {vocab_size - 1}",
            )
        if not abs(value) <= _MAX_BIAS:  # nor is it NaN
            raise InvalidSubmitError(
                "logit_bias", f"logit_bias of token {token} is {value:g}: choose {-_MAX_BIAS:g} to {_MAX_BIAS:g}"
            )


def _check_stops(sampling: pb.Sampling, vocab_size: int) -> None:
    if len(sampling.stop_token_ids) > _MAX_STOP_TOKENS:
        raise InvalidSubmitError(
            "stop_token_ids",
            f"stop_token_ids has {len(sampling.stop_token_ids)} ids: give at most {_MAX_STOP_TOKENS}",
        )
    for token in sampling.stop_token_ids:
        if token >= vocab_size:
            raise InvalidSubmitError(
                "stop_token_ids",
                f"stop_token_ids has the token id {token}: this model's vocabulary goes from 0 to {vocab_size - 1}",
            )
    if len(sampling.stop) > _MAX_STOPS:
        raise InvalidSubmitError("stop", f"stop has {len(sampling.stop)} strings: give at most {_MAX_STOPS}")
    for stop in sampling.stop:
        if not 0 < len(stop) <= _MAX_STOP_CHARACTERS:
            raise InvalidSubmitError(
                "stop", f"a stop string has {len(stop)} characters: give 1 to {_MAX_STOP_CHARACTERS}"
            )
    if sum(map(len, sampling.stop)) > _MAX_ALL_STOPS_CHARACTERS:
        raise InvalidSubmitError(
            "stop", f"the stop strings have more than {_MAX_ALL_STOPS_CHARACTERS} characters in all: give fewer"
        )


def identity_of(submit: pb.Submit, model: str, worker_id: str) -> Identity:
    """Return what the meter keeps of a submit."""
    return Identity(
        request_id=submit.request_id,
        tenant=submit.tenant,
        project=submit.project,
        key=submit.key,
        session=submit.session,
        model=model,
        worker_id=worker_id,
    )


def _num_logprobs(submit: pb.Submit, sampling: pb.Sampling) -> int:
    if sampling.HasField("logprobs"):
        return sampling.logprobs
    return 0 if num_generated(submit) > num_outputs(submit) else -1


def submit_frame(handle: int, submit: pb.Submit) -> ipc.SubmitFrame:
    """Return the core's form of a submit. Without `sampling` it is greedy. Ranking outputs takes log-probabilities."""
    sampling = submit.sampling if submit.HasField("sampling") else pb.Sampling(top_p=1.0)
    search = submit.beam_search
    return ipc.SubmitFrame(
        handle=handle,
        request_id=submit.request_id,
        tenant=submit.tenant,
        namespace=submit.namespace,
        session=submit.session,
        priority=PRIORITY.get(submit.priority, Priority.STANDARD),
        deadline=submit.deadline,
        policy_version=submit.policy_version,
        prompt=list(submit.token_ids),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed if sampling.HasField("seed") else None,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        n=num_generated(submit),
        num_logprobs=_num_logprobs(submit, sampling),
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else -1,
        min_p=sampling.min_p,
        min_tokens=sampling.min_tokens,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        logit_bias=sorted(sampling.logit_bias.items()),
        grammar_kind=GRAMMAR_KIND[sampling.grammar.kind] if sampling.HasField("grammar") else "",
        grammar=sampling.grammar.text,
        embed=submit.embed,
        beam_width=search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        session_seconds=submit.session_seconds,
    )
