"""Random traffic over all tiers whose prompts are often larger than the pool, from a seed: most of it is streamed."""

import random
from pathlib import Path

from engine.request import Priority
from engine.scheduler.sizing import window_blocks
from tests.engine.costs import set_costs
from tests.engine.tiered import TieredTraffic, TieredWorld
from tests.engine.traffic import STOPS, TENANTS

MAX_CONTEXT = 256  # what a tenant's policy allows in these worlds
NUM_SLABS = 96


class StreamedTraffic(TieredTraffic):
    """Large prompts with common beginnings, and their next turns, beside small ones, forks and beams."""

    def __init__(self, seed: int, folder: Path) -> None:
        chance = random.Random(seed)
        self.num_streamed = 0  # blocks that have gone to host memory from running sequences
        self.num_recalled = 0
        self._block_size = chance.choice((2, 4, 8))
        window = window_blocks(self._block_size)
        super().__init__(seed, folder, num_blocks=chance.randint(window + 1, 3 * window), ahead=chance.random() < 0.5)
        self._stems += [[chance.randrange(900) for _ in range(chance.randint(80, 230))] for _ in range(4)]

    def _make(self, seed: int, before: TieredWorld | None = None) -> TieredWorld:
        chance = random.Random(seed)
        world = TieredWorld(
            self.folder,
            before=before,
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            max_rows=chance.randint(2, 12),
            budget=chance.choice((8, 24, 64)),
            max_context=MAX_CONTEXT,
            eos=STOPS,
            ahead=self._ahead,
            num_slabs=NUM_SLABS,
            lateness=self._is_late,
            streams=True,
        )
        set_costs(world, (1.0, 0.7, 0.3)[seed % 3], seed)
        return world

    def _submit(self) -> None:
        """A request arrives, in half of the cases a large one: often the beginning of another, or its next turn."""
        chance, world = self.chance, self.world
        if chance.random() < 0.5:
            super()._submit()
            return
        prompt = list(chance.choice(self._stems))
        if chance.random() < 0.3 and world.finished:
            earlier = chance.choice([one for one in world.requests if one in world.finished] or [None])
            if earlier is not None:
                prompt = [*world.requests[earlier].prompt, *world.tokens[earlier]]
        prompt = prompt[: chance.randint(40, 230)] + [chance.randrange(1000) for _ in range(chance.randint(0, 12))]
        if chance.random() < 0.1:
            self._embed(prompt)
            return
        max_tokens = chance.choice((0, 1, chance.randint(1, 60)))
        world.submit(
            chance.choice(TENANTS),
            prompt,
            max_tokens,
            priority=chance.choice(tuple(Priority)),
            num_logprobs=chance.choice((-1, -1, 2)),
            prompt_logprobs=chance.choice((-1, -1, -1, 1)),
            stop_token_ids=frozenset(chance.sample(range(1000), chance.choice((0, 0, 40)))),
            **(self._shaping(max_tokens) if chance.random() < 0.3 else {}),
        )

    def _count(self) -> None:
        super()._count()
        streaming = self.world.scheduler.roster.streaming
        self.num_streamed += streaming.offloaded_blocks
        self.num_recalled += streaming.recalled_blocks
        host = self.world.scheduler.memory.host
        assert all(account.num_claims == 0 for account in host.accounts()), "a claim is left"
