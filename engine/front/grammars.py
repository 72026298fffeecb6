"""Grammars of requests, judged before anything else is done for them.

A helper process (`python -m engine.constraints`) does with each grammar what the core would do, with less memory and a
bound of time: a grammar that breaks it costs a helper and never a core. It is started with the first grammar, and
judges one after the other, always of the tenant whose grammars have taken the least time, so that nobody's keep
others' waiting for long. What a grammar takes is its tenant's, a new helper for one that it broke included. Verdicts
are kept, for each tenant by itself; a grammar that is known costs nothing.
"""

import asyncio
import contextlib
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from engine.constraints.fair import LEAST_SECONDS, FairLines
from engine.constraints.judge import Question, decode_verdict, encode, question_of
from engine.constraints.shelf import Shelf
from engine.front.helper import Helper, HelperFailed
from engine.front.live_request import GRAMMAR_KIND, InvalidSubmitError
from engine.model.folder import ModelFolder
from engine.protocol import pb
from engine.request import Grammar

JUDGE_COMMAND = (sys.executable, "-m", "engine.constraints")
MAX_TEXT_BYTES = 128 << 10
JUDGE_SECONDS = 60.0  # for one grammar, if the machine is so busy that the helper's own limit comes to nothing
START_SECONDS = 60.0  # for a new helper to read the vocabulary
MAX_WAITING = 1024  # requests whose grammars are not judged yet
MAX_TENANT_WAITING = 64  # of them, one tenant's
KNOWN_BYTES = 8 << 20  # of verdicts that are kept
TENANT_KNOWN_BYTES = KNOWN_BYTES // 16  # of them, one tenant's
_VERDICT_BYTES = 256  # of each, beside what it says

Tell = Callable[[pb.Refused | None], None]

log = structlog.get_logger(part="grammars")


def check_grammar(submit: pb.Submit) -> None:
    """Refuse what cannot be judged, and what contradicts a grammar.

    Raises:
        InvalidSubmitError: names the field and the fix.
    """
    sampling = submit.sampling
    if not sampling.HasField("grammar"):
        return
    if sampling.grammar.kind not in GRAMMAR_KIND:
        raise InvalidSubmitError("grammar", "the grammar is of no known kind: give a JSON schema, a regex or a grammar")
    num_bytes = len(sampling.grammar.text.encode())
    if not 0 < num_bytes <= MAX_TEXT_BYTES:
        raise InvalidSubmitError("grammar", f"the grammar has {num_bytes} bytes: give 1 to {MAX_TEXT_BYTES}")
    if submit.embed:
        raise InvalidSubmitError("grammar", "an embedding has no output that could follow a grammar: leave it out")
    if submit.HasField("beam_search"):
        raise InvalidSubmitError("grammar", "beams follow no grammar: leave it out of a beam search")
    if sampling.ignore_eos:
        raise InvalidSubmitError(
            "ignore_eos", "an output that follows a grammar ends where the grammar ends: leave ignore_eos out"
        )


def grammar_of(submit: pb.Submit) -> Grammar | None:
    """Return the grammar that a request's outputs must follow."""
    if not submit.sampling.HasField("grammar"):
        return None
    return Grammar(GRAMMAR_KIND[submit.sampling.grammar.kind], submit.sampling.grammar.text)


@dataclass(slots=True, eq=False)
class _Case:
    """A tenant's grammar that is to be judged, and who waits for it: one for each request."""

    tenant: str
    grammar: Grammar
    digest: bytes
    waiting: list[Tell] = field(default_factory=list)


class GrammarJudge:
    """Judges the grammars of one model. Call it on the event loop."""

    def __init__(
        self, folder: ModelFolder, command: Sequence[str] = JUDGE_COMMAND, *, judge_seconds: float = JUDGE_SECONDS
    ) -> None:
        """Start nothing yet.

        Args:
            folder: the model.
            command: starts the helper; the tokenizer's path, the vocabulary's size and the end tokens are appended.
            judge_seconds: for one grammar.
        """
        tokens = [str(token) for token in folder.eos_token_ids]
        path = str(folder.path / "tokenizer.json")
        self._helper = Helper((*command, path, str(folder.vocab_size), *tokens))
        self._known: Shelf[bytes, str] = Shelf(KNOWN_BYTES, tenant_most=TENANT_KNOWN_BYTES)  # what is wrong with each
        self._cases: dict[tuple[str, bytes], _Case] = {}
        self._lines: FairLines[_Case] = FairLines()
        self._num_waiting: Counter[str] = Counter()
        self._work: asyncio.Task[None] | None = None
        self._judge_seconds = judge_seconds

    def judge(self, tenant: str, grammar: Grammar, tell: Tell) -> None:
        """Tell, now or later, how a request with this grammar is refused; None: it is not."""
        digest = hashlib.sha256(f"{grammar.kind}\0{grammar.text}".encode()).digest()
        problem = self._known.get(tenant, digest)
        if problem is not None:
            tell(_refused(problem))
        elif self._num_waiting[tenant] >= MAX_TENANT_WAITING:
            message = f"{MAX_TENANT_WAITING} of the tenant's requests wait for new grammars already: try again soon"
            tell(pb.Refused(code=pb.REFUSAL_CODE_QUEUE_FULL, message=message, field="grammar"))
        elif self._num_waiting.total() >= MAX_WAITING:
            message = "this worker has too many new grammars to look at: try again soon"
            tell(pb.Refused(code=pb.REFUSAL_CODE_UNAVAILABLE, message=message))
        else:
            self._enter(tenant, grammar, digest, tell)

    def close(self) -> None:
        """End the helper; nobody is told anything any more."""
        if self._work is not None:
            self._work.cancel()
        self._helper.close()

    def _enter(self, tenant: str, grammar: Grammar, digest: bytes, tell: Tell) -> None:
        case = self._cases.get((tenant, digest))
        if case is None:
            case = self._cases[tenant, digest] = _Case(tenant, grammar, digest)
            self._lines.put(tenant, case)
        case.waiting.append(tell)
        self._num_waiting[tenant] += 1
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Judge until nothing waits."""
        while (taken := self._lines.take()) is not None:
            tenant, case = taken
            refused: pb.Refused | None
            seconds = 0.0
            try:
                problem, seconds = await self._ask(case.grammar)
            except (HelperFailed, TimeoutError, msgspec.MsgspecError) as error:
                log.error("helper_not_ready", error=str(error))
                message = "this worker cannot look at grammars now; its log says why: try again soon"
                refused = pb.Refused(code=pb.REFUSAL_CODE_UNAVAILABLE, message=message)
            else:
                refused = _refused(problem)
                self._known.put(tenant, case.digest, problem, _VERDICT_BYTES + len(problem.encode()))
            self._lines.charge(tenant, seconds)
            self._close(case, refused)

    def _close(self, case: _Case, refused: pb.Refused | None) -> None:
        tenant = case.tenant
        del self._cases[tenant, case.digest]
        self._num_waiting[tenant] -= len(case.waiting)
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
        for tell in case.waiting:
            tell(refused)

    async def _ask(self, grammar: Grammar) -> tuple[str, float]:
        """Return what is wrong with a grammar, empty: nothing, and what it took to say so, in seconds.

        Raises:
            HelperFailed, TimeoutError, MsgspecError: there is no helper that could say.
        """
        await self._greet()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._judge_seconds):
                verdict = decode_verdict(await self._helper.ask(encode(question_of(grammar))))
                return verdict.problem, max(verdict.seconds, LEAST_SECONDS)
        except TimeoutError:
            problem = f"the grammar takes more than {self._judge_seconds:g} s to prepare: make it simpler"
        except HelperFailed:
            problem = "the grammar takes too much time or memory to prepare, or is nested too deeply: make it simpler"
        log.warning("grammar_too_large", kind=grammar.kind, num_characters=len(grammar.text), problem=problem)
        with contextlib.suppress(HelperFailed, TimeoutError):  # whoever asks next hears of it
            await self._greet()  # what another helper takes is this grammar's, too
        return problem, time.monotonic() - began

    async def _greet(self) -> None:
        """Make sure of a helper that is ready: what fails after that is the grammar's fault."""
        hello = encode(Question())
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._helper.ask(hello)
        except HelperFailed:  # it ended while it had nothing to do
            async with asyncio.timeout(START_SECONDS):
                await self._helper.ask(hello)


def _refused(problem: str) -> pb.Refused | None:
    return pb.Refused(code=pb.REFUSAL_CODE_INVALID, message=problem, field="grammar") if problem else None
