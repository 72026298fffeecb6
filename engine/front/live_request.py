"""A request while the core works on it: its limits as submitted, its counters and its text."""

import math
import time
from dataclasses import dataclass, field

from engine import ipc
from engine.front.connection import Connection
from engine.front.detokenize import TextStream
from engine.front.meter import Metered
from engine.front.policies import PRIORITY
from engine.front.table import Counters, Identity
from engine.protocol import pb
from engine.request import Priority

NAMESPACE_BYTES = 32
_ID_MAX_BYTES = {"request_id": 128, "tenant": 128, "project": 128, "key": 128, "session": 256}
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 4096


class InvalidSubmitError(ValueError):
    """A submit that no worker would take; `field` names what to change."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """One running request. `handle` is the front's number for it, which no other request ever gets."""

    handle: int
    stream: int
    connection: Connection
    metered: Metered
    counters: Counters
    text: TextStream
    prompt_tokens: int
    end_tokens: frozenset[int]  # a last token among these ended the output and is not part of its text
    submitted: float = field(default_factory=time.monotonic)

    def moment(self) -> float:
        """Return unix seconds, counted on from its start: a clock that is set meanwhile does not change its length."""
        return self.counters.started_at + time.monotonic() - self.submitted


def check_submit(submit: pb.Submit, vocab_size: int) -> None:
    """Refuse what cannot be a request, whatever the policy.

    Raises:
        InvalidSubmitError: names the field and the fix.
    """
    for name, limit in _ID_MAX_BYTES.items():
        if len(getattr(submit, name).encode()) > limit:
            raise InvalidSubmitError(name, f"{name} is longer than {limit} bytes")
    for name in ("request_id", "tenant"):
        if not getattr(submit, name):
            raise InvalidSubmitError(name, f"{name} is empty: every request carries one")
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
        _check_sampling(submit.sampling)


def _check_sampling(sampling: pb.Sampling) -> None:
    if not (math.isfinite(sampling.temperature) and 0 <= sampling.temperature <= 100):
        raise InvalidSubmitError("temperature", f"temperature is {sampling.temperature}: choose 0 to 100")
    if not (math.isfinite(sampling.top_p) and 0 <= sampling.top_p <= 1):
        raise InvalidSubmitError("top_p", f"top_p is {sampling.top_p}: choose 0 to 1")
    if len(sampling.stop) > _MAX_STOPS:
        raise InvalidSubmitError("stop", f"stop has {len(sampling.stop)} strings: give at most {_MAX_STOPS}")
    for stop in sampling.stop:
        if not 0 < len(stop) <= _MAX_STOP_CHARACTERS:
            raise InvalidSubmitError(
                "stop", f"a stop string has {len(stop)} characters: give 1 to {_MAX_STOP_CHARACTERS}"
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


def submit_frame(handle: int, submit: pb.Submit) -> ipc.SubmitFrame:
    """Return the core's form of a submit. Without `sampling` it is greedy."""
    sampling = submit.sampling if submit.HasField("sampling") else pb.Sampling(top_p=1.0)
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
    )
