"""One machine, two neighbours: a minnow that asks a short question now and then, and whales that never stop.

    quiet = asyncio.run(watch(endpoint, source, samples=50))
    noisy = asyncio.run(watch(endpoint, source, samples=50, whales=whale_endpoint))

The minnow's requests are an open loop: one each half second, whatever became of those before. A whale is a closed one:
its next prompt goes out when its last answer has come. The minnow begins once every whale has had its first answer, so
that the whales' prompts stand at different places; no whale asks again after the minnow's last answer.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.peers.client import Answer, Endpoint, complete

MINNOW_TOKENS, MINNOW_EVERY = 24, 0.5  # of output; seconds between two requests
WHALES, WHALE_WORDS, WHALE_TOKENS = 4, 2000, 32
MINNOW_WORDS = 28  # some 32 tokens
WORDS = (
    "harbour morning boats quay woman crates oranges number captain letter window river table winter garden bridge "
    "music paper engine market children mountain story evening candle silver question answer island road summer"
)


class Words:
    """Texts of random words; two that begin alike are as good as impossible."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def take(self, num_words: int) -> str:
        """Return a new text."""
        return " ".join(self._random.choices(WORDS.split(), k=num_words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen. Seconds; `gaps` are the minnow's between two pieces of text, all requests together."""

    first_text: tuple[float, ...]  # from when the request was due
    gaps: tuple[float, ...]
    whale_tokens_per_second: float  # of prompt and output, of all whales together; 0: there were none


async def watch(
    minnow: Endpoint, words: Words, *, samples: int, whales: Endpoint | None = None, num_whales: int = WHALES
) -> Watched:
    """Send the minnow's requests, with whales beside it where they have an endpoint.

    Raises:
        PeerError: a request was refused, or did not get its tokens.
    """
    prompts = [words.take(MINNOW_WORDS) for _ in range(samples)]
    async with asyncio.TaskGroup() as group:
        herd = [Whale(whales, words) for _ in range(num_whales)] if whales else []
        for whale in herd:
            group.create_task(whale.swim())
        for whale in herd:
            await whale.answered.wait()
        start = time.perf_counter()
        dues = [start + index * MINNOW_EVERY for index in range(samples)]
        asked = [group.create_task(_ask(minnow, *pair)) for pair in zip(prompts, dues, strict=True)]
        answers = [await request for request in asked]
        end = time.perf_counter()
        for whale in herd:
            whale.tired = True
    return Watched(
        first_text=tuple(answer.text_times[0] - due for answer, due in zip(answers, dues, strict=True)),
        gaps=tuple(later - one for answer in answers for one, later in pairwise(answer.text_times)),
        whale_tokens_per_second=sum(whale.tokens(start, end) for whale in herd) / (end - start),
    )


class Whale:
    """One stream of long prompts, each sent when the one before is answered, until it is tired."""

    def __init__(self, endpoint: Endpoint, words: Words) -> None:
        self.answered = asyncio.Event()  # once
        self.tired = False
        self._endpoint = endpoint
        self._words = words
        self.answers: list[Answer] = []

    async def swim(self) -> None:
        """Ask one after the other."""
        while not self.tired:
            prompt = self._words.take(WHALE_WORDS)
            self.answers.append(await complete(self._endpoint, prompt, max_tokens=WHALE_TOKENS))
            self.answered.set()

    def tokens(self, start: float, end: float) -> float:
        """Return its tokens of prompt and output between two moments; a request at the edge counts by its time."""
        return sum(
            (one.prompt_tokens + one.num_tokens)
            * max(0.0, min(end, one.ended) - max(start, one.began))
            / (one.ended - one.began)
            for one in self.answers
        )


async def _ask(endpoint: Endpoint, prompt: str, due: float) -> Answer:
    """Ask when it is due."""
    await asyncio.sleep(due - time.perf_counter())
    return await complete(endpoint, prompt, max_tokens=MINNOW_TOKENS)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all do not exceed, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
