"""What a core does for each of several outputs, in whatever order, and what a client is to get of it."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import strategies as st

from engine import ipc
from engine.protocol import pb
from tests.engine.front.dispatching import Client, Front

END_TOKEN = 200
ALPHABET = "ab<> "


@dataclass
class Script:
    """What the core does for one output: its tokens, and how it ends after the last one."""

    token_ids: list[int]
    reason: str
    logprobs: list[float]
    given: int = 0
    ended: bool = False

    @property
    def news(self) -> bool:
        """Whether the core has something left to do."""
        return not self.ended


@dataclass
class Core:
    """Runs scripts, hears of cancels some steps late, and reports each output's end once."""

    handle: int
    scripts: list[Script]
    delay: int
    cancels: list[tuple[int, ipc.CancelFrame]] = field(default_factory=list)
    step: int = 0
    seen: set[int] = field(default_factory=set)

    def advance(self, indexes: list[int], count: int) -> list[ipc.Output]:
        """Run one step: these outputs get `count` tokens, cancels that have arrived are carried out."""
        self.step += 1
        outputs = [self.cancelled(index, frame.reason) for at, frame in self.cancels for index in self.aimed(at, frame)]
        for index in indexes:
            script = self.scripts[index % len(self.scripts)]
            if script.ended:
                continue
            start, script.given = script.given, min(script.given + count, len(script.token_ids))
            script.ended = script.given == len(script.token_ids)
            outputs.append(
                ipc.Output(
                    handle=self.handle,
                    index=index % len(self.scripts),
                    admitted_max_tokens=0 if self.seen else 99,
                    cached_tokens=0 if self.seen else 2,
                    token_ids=script.token_ids[start : script.given],
                    logprobs=script.logprobs[start : script.given],
                    finish_reason=script.reason if script.ended else "",
                    kv_byte_seconds=float(script.given),
                    num_preemptions=1,
                )
            )
            self.seen.add(index)
        return outputs

    def aimed(self, at: int, frame: ipc.CancelFrame) -> list[int]:
        """Return the running outputs that a cancel ends, once it has arrived."""
        if at + self.delay > self.step:
            return []
        indexes = range(len(self.scripts)) if frame.index < 0 else [frame.index]
        return [index for index in indexes if not self.scripts[index].ended]

    def cancelled(self, index: int, reason: str) -> ipc.Output:
        """End an output."""
        self.scripts[index].ended = True
        return ipc.Output(handle=self.handle, index=index, finish_reason=reason)


@st.composite
def scripts(draw: st.DrawFn, front_encode: dict[str, int]) -> list[Script]:
    """Several outputs over a small alphabet, some with an end token."""
    made = []
    for text in draw(st.lists(st.text(ALPHABET, min_size=1, max_size=12), min_size=2, max_size=5)):
        token_ids = [front_encode[character] for character in text]
        reason = draw(st.sampled_from(["stop", "length"]))
        if draw(st.booleans()):
            token_ids.append(END_TOKEN)
            reason = "stop"
        made.append(Script(token_ids, reason, [draw(st.floats(-9, 0)) for _ in token_ids]))
    return made


def expected(front: Front, script: Script, stops: list[str]) -> tuple[list[int], str, int]:
    """Return what a client gets of an output that runs to its end: tokens, text and reason."""
    shown = script.token_ids[:-1] if script.token_ids[-1] == END_TOKEN else script.token_ids
    text = front.tokenizer.decode(shown)
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return shown[:end], text[: end - max(map(len, complete))], pb.FINISH_REASON_STOP
    reason = pb.FINISH_REASON_STOP if script.reason == "stop" else pb.FINISH_REASON_LENGTH
    return script.token_ids, text, reason


STORIES = {
    "stops": st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    "order": st.lists(
        st.tuples(st.lists(st.integers(0, 4), unique=True, max_size=5), st.integers(1, 3)), min_size=1, max_size=12
    ),
    "delay": st.integers(0, 3),
}


async def play(front: Front, client: Client, core: Core, order: list[tuple[list[int], int]], until: int = 1000) -> None:
    """Give the dispatcher step after step until every output has ended, or `until` steps have been given."""
    turn = 0
    while any(script.news for script in core.scripts) and turn < until:
        indexes, count = order[turn] if turn < len(order) else ([0, 1, 2, 3, 4], 3)
        front.dispatcher.step(core.advance(indexes, count))
        counted = client.counted()
        await asyncio.sleep(0)
        assert counted is None or client.tokens() <= counted
        core.cancels += [(core.step, frame) for frame in front.sent if isinstance(frame, ipc.CancelFrame)]
        front.sent.clear()
        turn += 1


def characters(front: Front) -> dict[str, int]:
    """Return the token of each character of the alphabet."""
    return {character: front.encode(character)[0] for character in ALPHABET}
