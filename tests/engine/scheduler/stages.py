"""A world with host memory for two tenants, as tests of tiers set it up."""

import time
from collections.abc import Callable

from engine.memory.eviction.base import BlockKey
from engine.request import TenantId
from tests.engine.costs import set_costs
from tests.engine.disk.stores import DEADLINE
from tests.engine.world import World

WHALE = TenantId("whale")
PROMPT = [31 * place % 900 + 50 for place in range(40)]  # ten blocks


class Late:
    """Says whether transfers are still under way."""

    def __init__(self) -> None:
        self.are = False

    def __call__(self) -> bool:
        """Say so."""
        return self.are


class Stage:
    """A world with host memory for two tenants; `late` holds transfers up."""

    def __init__(self, *, num_blocks: int = 32, num_slabs: int = 48, soft: int = 0, budget: int = 64) -> None:
        self.late = Late()
        self.world = World(
            num_blocks=num_blocks, budget=budget, num_slabs=num_slabs, lateness=self.late, max_context=128
        )
        set_costs(self.world, 1.0)
        self.soft = soft
        for tenant in ("minnow", "whale"):
            self.give(tenant, num_blocks)

    def give(self, tenant: str, blocks: int) -> None:
        """Set a tenant's ceiling on the device."""
        self.world.policy(tenant, blocks=blocks, slabs=self.world.shape.num_slabs, soft=min(self.soft, blocks))

    def run(self) -> None:
        """Step until nothing is left to do."""
        self.world.run()
        for output in self.world.tokens:
            self.world.assert_exact(output)

    def keys(self, tokens: list[int], tenant: str = "whale") -> list[BlockKey]:
        """Return the keys of a prompt's full blocks."""
        return chain_of(self.world, tenant, tokens)

    def push_out(self) -> None:
        """Have the whale's cached blocks leave the device."""
        self.give("whale", 0)
        self.run()
        assert not self.world.cached("whale")
        self.give("whale", self.world.shape.num_blocks)

    def in_host(self, keys: list[BlockKey]) -> int:
        """Count blocks in host memory."""
        return sum(self.world.scheduler.memory.tiers.where(key)[1] for key in keys)

    def on_device(self, keys: list[BlockKey]) -> int:
        """Count blocks on the device."""
        return sum(self.world.scheduler.memory.tiers.where(key)[0] for key in keys)


def chain_of(world: World, tenant: str, tokens: list[int]) -> list[BlockKey]:
    """Return the keys of a prompt's full blocks."""
    memory = world.scheduler.memory
    account = memory.accounts.get(TenantId(tenant))
    assert account is not None
    chain = memory.lookup.chain(account, tenant.encode())
    assert chain is not None
    chain.extend(tokens, len(tokens) // world.shape.block_size)
    return chain.keys


def until(world: World, condition: Callable[[], object]) -> None:
    """Step until something is so."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it never is"
        world.step()
