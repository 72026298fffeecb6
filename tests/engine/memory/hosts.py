"""Host tiers for tests, their tenants and blocks."""

from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.hosted import Content
from engine.memory.tiers.moves import Moves
from engine.request import BlockId, SequenceId, TenantId

TENANTS = (TenantId("minnow"), TenantId("whale"))


def key(tenant: TenantId, number: int) -> BlockKey:
    """Return the key of a tenant's block."""
    return BlockKey(f"{tenant} {number}".encode())


def owner_of(one: BlockKey) -> TenantId:
    """Return whose key it is."""
    return TenantId(one.decode().split()[0])


def content(last_use: float = 1.0, hits: int = 0, depth: int = 0) -> Content:
    """Return what is known of a block."""
    node = CachedNode(BlockId(0), last_use, hits, 0, 0, depth, 4 * (depth + 1))
    return Content(BlockKey(b"before"), bytes(12), node)


def make_host(num_slabs: int = 4, ceiling: int = 4) -> HostTier:
    """Return a tier with a ceiling for the minnow, who has stored two blocks that a sequence waits for."""
    host = HostTier(num_slabs)
    host.limit(TENANTS[0], ceiling)
    keys = [key(TENANTS[0], number) for number in range(2)]
    host.claims.claim(SequenceId(1), TENANTS[0], keys)
    for number in (1, 0):
        evict(host, keys[number], number)
    return host


def evict(host: HostTier, one: BlockKey, block: int, known: Content | None = None) -> None:
    """Let a block leave the device, for the whale's need."""
    host.evicted(one, BlockId(block), known or content(), by=TENANTS[1], of=owner_of(one))


def commit(host: HostTier) -> Moves:
    """Take a plan and commit it."""
    moves = host.take()
    host.landed(moves.stores, moves.loads)
    return moves


def full_host() -> tuple[HostTier, list[BlockKey]]:
    """Return a tier of two slabs, both idle and taken, and the keys: of what is there, and of two blocks more."""
    host = make_host(num_slabs=2)
    commit(host)
    host.claims.release(SequenceId(1))
    return host, [key(TENANTS[0], number) for number in range(4)]
