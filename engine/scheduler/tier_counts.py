"""The tiers at one moment, for whoever reports them."""

from typing import TYPE_CHECKING

from engine.memory.tiers.figures import TierCounts

if TYPE_CHECKING:
    from engine.memory.manager import KVMemory
    from engine.scheduler.roster import Roster


def tier_counts(memory: "KVMemory", roster: "Roster") -> TierCounts:
    """Read the figures of all tiers, and of who waited for them."""
    host, tiers, block_bytes = memory.host, memory.tiers, memory.shape.block_bytes
    disk = tiers.disk.store.stats() if tiers.disk is not None else None
    swaps, fetching = roster.swapping.counts, roster.fetching
    return TierCounts(
        host_bytes_total=host.num_slabs * block_bytes,
        host_bytes_used=host.num_used * block_bytes,
        disk_bytes_total=disk.total_bytes if disk is not None else 0,
        disk_bytes_used=disk.used_bytes if disk is not None else 0,
        disk_problem=disk.problem if disk is not None else "",
        disk_errors=sum(disk.errors.values()) if disk is not None else 0,
        host_bytes={account.owner: account.used * block_bytes for account in host.accounts()},
        disk_bytes=dict(disk.owners) if disk is not None else {},
        traffic=tiers.traffic(),
        hit_tokens=dict(tiers.hit_tokens),
        stall_seconds=fetching.stall_seconds,
        prefetched_blocks=tiers.mover.brought_blocks + tiers.read_blocks,
        prefetched_used_blocks=tiers.mover.asked_blocks + host.num_guessed,
        num_lost_blocks=host.num_lost,
        swap_chosen=swaps.num_swapped,
        recompute_chosen=swaps.num_recomputed,
        fetch_chosen=fetching.num_chosen,
        fetch_late=fetching.num_late,
    )
