"""The share groups of a spell of leadership: their limits, and their prefixes as each worker's model tokenises them.

    truth ──▶ set_groups ──▶ policy, with the prefixes that are tokenised already ──────────▶ ledger ──▶ pushes
    worker ──▶ Describe ──▶ its way to tokenise ("form") ──▶ prefix after prefix in a thread ──▶ policy once more
                                                                                             └──▶ readings for pages

Nothing here holds up a policy: for a worker that does not describe itself, or a long text, only prefixes wait.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from django.db import Error

from engine.protocol import engine_pb2 as pb
from gateway.controller.holders import GroupPolicy, PrefixTokens
from gateway.workers.control import ControlError
from tenants.contracts import SharedPrefixView, ShareGroupPolicy
from tenants.reports import PrefixReading

if TYPE_CHECKING:
    from gateway.controller.prefixes import Tokenised
    from gateway.workers.model import Model

FIRST_BACKOFF = 0.2
LAST_BACKOFF = 10.0
REPEAT_SECONDS = 30.0  # readings are told again so often: whoever keeps them may forget
RETRY_SECONDS = 1.0  # while Postgres is away
TELL_SECONDS = 1.0  # while many prefixes are tokenised, those that are done leave so often
TOKENS_PER_SECOND = 1_000_000  # pushed to all workers, at most: what changes a group sends all of it

Describe = Callable[[], Awaitable[pb.ModelCard]]
Fetch = Callable[[str], Awaitable[SharedPrefixView | None]]

log = structlog.get_logger("controller")


@dataclass(slots=True)
class _Worker:
    """A worker that may need prefixes. What its card said is kept while it is away: it comes back as it was, mostly."""

    describe: Describe | None = None  # None: away
    learning: "asyncio.Task[None] | None" = None
    is_learned: bool = False  # its card is of this connection
    form: str = ""
    model: str = ""
    block_size: int = 1


class Sharing:
    """Owned by the fleet's loop; `run` tokenises.

    Args:
        fetch: returns a prefix with its contents, None where it is gone; they are not kept.
        changed: called with the groups whose prefixes have changed without their version.
        readings: called with a worker and all that is known of its prefixes, whenever that changes.
    """

    def __init__(
        self,
        fetch: Fetch,
        changed: Callable[[Collection[str]], None],
        readings: Callable[[str, tuple[PrefixReading, ...]], None],
    ) -> None:
        self._fetch = fetch
        self._changed = changed
        self._readings = readings
        self._groups: dict[str, ShareGroupPolicy] = {}
        self._workers: dict[str, _Worker] = {}
        self._models: dict[str, Model] = {}  # by form
        self._tokens: dict[tuple[str, str], Tokenised] = {}  # by prefix id and form
        self._told: dict[str, tuple[PrefixReading, ...]] = {}
        self._quiet_until = 0.0  # monotonic
        self._building = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def names(self) -> frozenset[str]:
        """The groups that are known."""
        return frozenset(self._groups)

    # ------------------------------------------------------------ what is known

    def set_groups(self, changed: Mapping[str, ShareGroupPolicy], gone: Iterable[str] = ()) -> None:
        """Take up changed groups and forget those that are gone."""
        self._groups |= changed
        for name in gone:
            self._groups.pop(name, None)
        self._tidy()
        self._learn_all()
        self._wake.set()

    def version(self, name: str) -> int:
        """Return the version of a known group."""
        return self._groups[name].version

    def policy(self, name: str) -> GroupPolicy:
        """Return a known group's limits, with those of its prefixes that are tokenised."""
        group = self._groups[name]
        return GroupPolicy(
            namespace=group.namespace,
            kv_soft_bytes=group.kv_soft_bytes,
            kv_hard_bytes=group.kv_hard_bytes,
            prefixes={
                worker: tuple(
                    PrefixTokens(prefix.id, known.form, tokenised.token_ids)
                    for prefix, tokenised in self._tokenised(group, known)
                    if not _problem(tokenised, known.block_size)
                )
                for worker, known in self._workers.items()
            },
        )

    def connected(self, worker_id: str, describe: Describe) -> None:
        """A worker is here, perhaps with another model than before; until that is known it gets what it had."""
        self.disconnected(worker_id)
        self._workers.setdefault(worker_id, _Worker()).describe = describe
        self._learn_all()

    def disconnected(self, worker_id: str) -> None:
        """A worker's stream is gone."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.describe is None:
            return
        if not worker.is_learned and worker.form:
            worker.form = ""  # the tokens of another model may be what it ended the stream for
            self._changed(self._groups.keys())
        worker.describe, worker.is_learned = None, False
        if worker.learning is not None:
            worker.learning.cancel()
            worker.learning = None

    def keep(self, workers: Collection[str]) -> None:
        """Forget every worker but these."""
        for worker_id in self._workers.keys() - set(workers):
            self.disconnected(worker_id)
            del self._workers[worker_id]
            self._tidy()

    # ------------------------------------------------------------ workers' cards

    def _learn_all(self) -> None:
        if not any(group.prefixes for group in self._groups.values()):
            return  # a fleet that shares nothing loads no tokenizer
        for worker_id, worker in self._workers.items():
            if worker.describe is not None and not worker.is_learned and worker.learning is None:
                learning = self._learn(worker_id, worker, worker.describe)
                worker.learning = asyncio.create_task(learning, name=f"card of {worker_id}")

    async def _learn(self, worker_id: str, worker: _Worker, describe: Describe) -> None:
        backoff, said = FIRST_BACKOFF, ""
        while True:
            try:
                card = await describe()
                worker.form = await self._form(card)
            except Exception as error:  # noqa: BLE001  # one worker's fault must not take the others' prefixes away
                reason, is_foreseen = str(error), isinstance(error, ControlError | ValueError)
            else:
                break
            if reason != said:
                log.warning("prefixes_wait", worker=worker_id, reason=reason, exc_info=not is_foreseen)
                said = reason
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)
        worker.model, worker.block_size = card.model, max(card.block_size, 1)
        worker.is_learned, worker.learning = True, None
        self._tidy()
        self._changed(self._groups.keys())
        self._wake.set()

    async def _form(self, card: pb.ModelCard) -> str:
        """Return the name of a card's form, whose model is known from now on."""
        form = await asyncio.to_thread(_form_of, card)
        async with self._building:
            if form not in self._models:
                self._models[form] = await asyncio.to_thread(_model_of, card)
        return form

    # ------------------------------------------------------------ tokens

    async def run(self) -> None:
        """Tokenise what is registered, until cancelled."""
        repeat_at = time.monotonic() + REPEAT_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(repeat_at - time.monotonic()):
                    await self._wake.wait()
            self._wake.clear()
            await self._catch_up()
            if time.monotonic() >= repeat_at:  # by the clock: each look at the truth wakes this, quiet or not
                repeat_at = time.monotonic() + REPEAT_SECONDS
                for worker_id, readings in self._told.items():
                    self._readings(worker_id, readings)

    async def _catch_up(self) -> None:
        done: set[str] = set()
        told_at = time.monotonic()
        while (waiting := self._next()) is not None:
            prefix, form = waiting
            try:
                whole = await self._fetch(prefix.id)
            except Error as error:
                log.warning("prefixes_wait", reason=str(error).strip())
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if form not in self._models:
                continue  # its last worker has gone
            self._tokens[prefix.id, form] = await asyncio.to_thread(_tokenise, self._models[form], whole)
            done.add(prefix.group)
            if time.monotonic() > max(told_at + TELL_SECONDS, self._quiet_until):
                self._tell(done)
                done, told_at = set(), time.monotonic()
        if done:
            await asyncio.sleep(self._quiet_until - time.monotonic())
            self._tell(done)

    def _next(self) -> tuple[SharedPrefixView, str] | None:
        """Return the shortest prefix that waits, and the form that lacks it."""
        forms = {worker.form for worker in self._workers.values()} & self._models.keys()
        waiting = [
            (prefix, form)
            for group in self._groups.values()
            for prefix in group.prefixes
            for form in forms
            if (prefix.id, form) not in self._tokens
        ]
        return min(waiting, key=lambda pair: pair[0].num_bytes, default=None)

    def _tell(self, groups: set[str]) -> None:
        self._tidy()  # a prefix or a worker may have gone meanwhile
        groups &= self._groups.keys()
        pushed = [prefix for name in groups for per in self.policy(name).prefixes.values() for prefix in per]
        self._quiet_until = time.monotonic() + sum(len(prefix.token_ids) for prefix in pushed) / TOKENS_PER_SECOND
        self._changed(groups)

    def _tidy(self) -> None:
        """Drop what no prefix or worker needs any more, and tell readings that have changed."""
        ids = {prefix.id for group in self._groups.values() for prefix in group.prefixes}
        if not ids:
            for worker in self._workers.values():
                worker.form, worker.is_learned = "", False
        forms = {worker.form for worker in self._workers.values()}
        self._models = {form: model for form, model in self._models.items() if form in forms}
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key[0] in ids and key[1] in forms}
        now = {worker_id: tuple(self._read(worker)) for worker_id, worker in self._workers.items()}
        for worker_id in self._told.keys() | now.keys():
            if now.get(worker_id, ()) != self._told.get(worker_id, ()):
                self._readings(worker_id, now.get(worker_id, ()))
        self._told = now

    def _read(self, worker: _Worker) -> Iterator[PrefixReading]:
        for group in self._groups.values():
            for prefix, tokenised in self._tokenised(group, worker):
                problem = _problem(tokenised, worker.block_size)
                yield PrefixReading(
                    prefix_id=prefix.id,
                    model=worker.model,
                    num_tokens=tokenised.num_tokens,
                    shared_tokens=0 if problem else tokenised.num_tokens // worker.block_size * worker.block_size,
                    problem=problem,
                )

    def _tokenised(self, group: ShareGroupPolicy, worker: _Worker) -> Iterator[tuple[SharedPrefixView, "Tokenised"]]:
        for prefix in group.prefixes:
            tokenised = self._tokens.get((prefix.id, worker.form))
            if tokenised is not None:
                yield prefix, tokenised


def _problem(tokenised: "Tokenised", block_size: int) -> str:
    """Return why a worker with blocks of `block_size` tokens shares nothing of a prefix; empty: it does."""
    if tokenised.problem or tokenised.num_tokens >= block_size:
        return tokenised.problem
    return (
        f"It has {tokenised.num_tokens} tokens, and only whole blocks of {block_size} are shared: "
        "register a longer beginning."
    )


# The imports below load what tokenises, 33 MB: in a thread, and only where there is a prefix.


def _form_of(card: pb.ModelCard) -> str:
    from gateway.controller.prefixes import form_of

    return form_of(card)


def _model_of(card: pb.ModelCard) -> "Model":
    from gateway.workers.model import model_from_card

    return model_from_card(card, created=0)


def _tokenise(model: "Model", prefix: SharedPrefixView | None) -> "Tokenised":
    from gateway.controller.prefixes import GONE, tokenise

    return tokenise(model, prefix) if prefix is not None else GONE
