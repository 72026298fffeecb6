"""Random stories of sessions over all tiers against a model: what is listed, what comes back, and what must be gone."""

import random
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.request import SequenceId
from engine.scheduler.session_calls import SessionAction, SessionView
from tests.engine.parked import Core

SIZE = 4  # tokens of a block
TENANTS = ("a", "b")
NAMES = tuple(f"chat-{number}" for number in range(6))
SECONDS = 5000.0  # that a session is kept
MARGIN = 300.0  # no session ends so near to a moment that is chosen: steps take as long as they take

Prefix = tuple[int, ...]  # all tokens up to the end of a block: what the block's key stands for


@dataclass
class Chat:
    """What the model knows of a session."""

    tokens: list[int] = field(default_factory=list)  # of the last turn
    prefixes: set[Prefix] = field(default_factory=set)  # of all turns
    num_turns: int = 0
    expires_at: float = 0.0
    pinned: bool = False


def prefixes(tokens: list[int]) -> set[Prefix]:
    """Return what the full blocks of some computed tokens stand for."""
    return {tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)}


class Story:
    """One world, its model, and what is under way."""

    def __init__(self, seed: int, disk: Path) -> None:
        self.draw = random.Random(seed)
        self.disk = disk
        self.is_ahead = seed % 2 == 1
        self.is_shared = False  # the beginning of all prompts is registered for a share group
        self.core = self.make_core()
        self.chats: dict[tuple[str, str], Chat] = {}
        self.live: dict[SequenceId, tuple[str, str, list[int]]] = {}  # tenant, session, prompt
        self.system = self.words(12)
        self.ending: defaultdict[Prefix, set[Prefix]] = defaultdict(set)  # what was ever computed, by its last block

    def make_core(self, now: float = 1000.0) -> Core:
        """Start a core on what is on the disk."""
        core = Core(self.disk, now=now, num_slabs=48, ahead=self.is_ahead)
        core.policy(*TENANTS)
        if self.is_shared:
            core.world.share("bank", self.system)
        return core

    def words(self, count: int) -> list[int]:
        """Return tokens that nobody else has."""
        return [self.draw.randrange(1000) for _ in range(count)]

    # ------------------------------------------------------------ what may happen

    def submit(self) -> None:
        """Begin a turn: it goes on from the last one, or from somewhere within it, or is the first."""
        tenant, name = self.draw.choice(TENANTS), self.draw.choice(NAMES)
        chat = self.chats.get((tenant, name))
        before = self.system if chat is None else chat.tokens
        if self.draw.random() < 0.3:
            before = before[: self.draw.randrange(len(before) + 1)]
        prompt = [*before, *self.words(self.draw.randrange(1, 10))]
        if len(prompt) > 100:
            prompt = [*self.system, *self.words(5)]
        session = name if self.draw.random() < 0.85 else ""
        sequence = self.core.world.submit(
            tenant, prompt, self.draw.randrange(1, 12), session=session, session_seconds=SECONDS
        )
        if chat is not None and session:
            chat.expires_at = self.core.world.now + SECONDS
        self.live[sequence] = (tenant, session, prompt)

    def cancel(self) -> None:
        """Let a client leave."""
        if self.live:
            self.core.world.cancel(self.draw.choice(list(self.live)))
            self.core.step()

    def erase(self) -> None:
        """Erase a session; nothing that was its alone is left anywhere."""
        tenant, name = self.draw.choice(TENANTS), self.draw.choice(NAMES)
        self.core.step()
        self.settle()
        readers = [prompt for of, session, prompt in self.live.values() if (of, session) != (tenant, name)]
        begun = {one for one, (of, session, _) in self.live.items() if (of, session) == (tenant, name)}
        others = {view.session: view for view in self.core.list(tenant)}
        known = self.core.change(tenant, name, SessionAction.ERASE)
        self.settle()
        assert not begun & self.live.keys(), "a request of it is still here"
        chat = self.chats.pop((tenant, name), None)
        assert (known is None) == (chat is None)
        if chat is None:
            return
        needed = set().union(*(one.prefixes for (of, _), one in self.chats.items() if of == tenant))
        needed |= set().union(*map(prefixes, readers))
        needed |= prefixes(self.system)  # the group's, if it was ever registered
        files = [path.read_bytes() for path in self.disk.rglob("*") if path.is_file()]
        places = [self.core.world.runner.contents(), *files]
        for prefix in chat.prefixes - needed:
            if len(self.ending[prefix[-SIZE:]]) > 1:
                continue  # by chance there is another block like it
            pattern = struct.pack(f"<{SIZE}q", *prefix[-SIZE:])
            assert not any(pattern in place for place in places), "something of an erased session is left"
        if not self.live:
            self.check_kept(tenant, others)

    def check_kept(self, tenant: str, before: dict[str, SessionView]) -> None:
        """Check that an erasure took nothing from the tenant's other sessions."""
        for view in self.core.list(tenant):
            old = before.get(view.session)
            if old is not None and old.num_turns == view.num_turns:
                assert view.num_tokens >= old.num_tokens

    def pin(self) -> None:
        """Pin a session, or unpin it."""
        tenant, name = self.draw.choice(TENANTS), self.draw.choice(NAMES)
        action = self.draw.choice((SessionAction.PIN, SessionAction.UNPIN))
        self.core.step()
        self.settle()
        view = self.core.change(tenant, name, action)
        self.settle()
        chat = self.chats.get((tenant, name))
        assert (view is None) == (chat is None)
        if chat is not None:
            chat.pinned = action is SessionAction.PIN
            if not chat.pinned:
                chat.expires_at = self.core.world.now + SECONDS

    def prefetch(self) -> None:
        """Say that a turn is about to come."""
        self.core.prefetch(self.draw.choice(TENANTS), self.draw.choice(NAMES))

    def push_out(self) -> None:
        """Take the device away from a tenant for a while."""
        tenant = self.draw.choice(TENANTS)
        self.core.policy(tenant, blocks=self.draw.randrange(20))
        for _ in range(3):
            self.core.step()
        self.core.policy(tenant)

    def go_on(self) -> None:
        """Let some steps pass."""
        for _ in range(self.draw.randrange(1, 15)):
            self.core.step()

    def wait(self) -> None:
        """Let so much time pass that some sessions are over."""
        world, ends = self.core.world, [chat.expires_at for chat in self.chats.values()]
        after = world.now + self.draw.random() * SECONDS
        while any(abs(end - after) < MARGIN for end in ends):
            after += MARGIN
        world.now = after
        self.core.step()

    def restart(self) -> None:
        """Finish what runs, end the core, and start another on its disk."""
        self.finish()
        self.core.close()
        self.core = self.make_core(self.core.world.now)

    def register(self) -> None:
        """Register the common beginning for a share group, or take that away: its blocks are named anew."""
        self.is_shared = not self.is_shared
        self.core.world.share("bank", *([self.system] if self.is_shared else []))
        self.core.step()

    # ------------------------------------------------------------ the model

    def settle(self) -> None:
        """Take over what has ended in the core, requests and sessions."""
        self.take_turns()
        now, active = self.core.world.now, {(tenant, name) for tenant, name, _ in self.live.values()}
        for key, chat in list(self.chats.items()):
            if key in active:
                chat.expires_at = max(chat.expires_at, now + MARGIN)
            elif chat.expires_at < now and not chat.pinned:
                del self.chats[key]

    def take_turns(self) -> None:
        """Take over what requests have left."""
        world = self.core.world
        for sequence in [one for one in self.live if one in world.finished]:
            tenant, name, prompt = self.live.pop(sequence)
            world.assert_exact(sequence)
            for prefix in prefixes([*prompt, *world.tokens[sequence]]):
                self.ending[prefix[-SIZE:]].add(prefix)
            if name and sequence in world.granted:
                tokens = [*prompt, *world.tokens[sequence]]
                chat = self.chats.setdefault((tenant, name), Chat())
                chat.num_turns += 1
                chat.expires_at = world.now + SECONDS
                chat.prefixes |= prefixes(tokens[:-1])
                chat.tokens = tokens

    def finish(self) -> None:
        """Let all requests end."""
        self.core.until(lambda: all(one in self.core.world.finished for one in self.live), "the end of all requests")
        self.settle()

    def check(self) -> None:
        """Compare what is listed with the model, where nothing runs that would change it."""
        self.finish()
        for tenant in TENANTS:
            listed = {view.session: view for view in self.core.list(tenant)}
            mine = {name: chat for (of, name), chat in self.chats.items() if of == tenant}
            assert listed.keys() == mine.keys()
            for name, chat in mine.items():
                assert (listed[name].num_turns, listed[name].pinned) == (chat.num_turns, chat.pinned)


@pytest.mark.parametrize("seed", range(6))
def test_stories_of_sessions(seed: int, tmp_path: Path) -> None:
    """Turns on branches, cancels, pins, ends in time, erasures, pressure and restarts: audited in every step."""
    story = Story(seed, tmp_path / "disk")
    events = [
        *[story.submit] * 6,
        *[story.go_on] * 6,
        *[story.erase] * 2,
        story.cancel,
        story.pin,
        story.prefetch,
        story.push_out,
        story.wait,
        story.restart,
        story.register,
    ]
    for _ in range(70):
        story.draw.choice(events)()
        story.settle()
        if story.draw.random() < 0.2:
            story.check()
    story.check()
    for tenant in TENANTS:
        for name in NAMES:
            story.core.change(tenant, name, SessionAction.ERASE)
        assert not story.core.list(tenant)
    story.core.close()
