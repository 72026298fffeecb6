"""Statistics over the last second."""

import msgspec
import pytest

from engine import ipc
from engine.front.stats import StatsBook
from engine.protocol import pb


def frame(at: float, tokens: int, *, peak: int = 0, preemptions: int = 0) -> ipc.StatsFrame:
    """A core's counters at one moment, with one tenant and one share group."""
    group = ipc.ShareGroupUse(
        name="g", kv_bytes=6, kv_peak_bytes=peak, kv_cached_bytes=4, num_prefixes=2, prefix_tokens=32
    )
    use = ipc.TenantUse(tenant="a", kv_bytes=10, kv_peak_bytes=peak, running=1, queued=2, output_tokens=tokens)
    return ipc.StatsFrame(
        at=at,
        step=int(at * 60),
        blocks_total=8,
        blocks_free=5,
        blocks_open=1,
        blocks_sealed=2,
        running=1,
        queued=2,
        prompt_tokens=10 * tokens,
        output_tokens=tokens,
        num_preemptions=preemptions,
        tenants=[use],
        share_groups=[group],
    )


def take(book: StatsBook) -> pb.Stats:
    """The statistics now."""
    return book.take(block_bytes=4, applied_version=3, core_ready=True)


def test_rates_are_over_the_last_second() -> None:
    """Tokens a second come from the counters of the last five frames, whatever came before."""
    book = StatsBook()
    for quarter, tokens in enumerate([0, 500, 500, 510, 520, 530, 540]):
        book.add(frame(quarter / 4, tokens))
    stats = take(book)
    assert stats.output_tokens_per_second == pytest.approx(40)
    assert stats.prompt_tokens_per_second == pytest.approx(400)
    assert stats.tenants[0].output_tokens_per_second == pytest.approx(40)
    assert (stats.blocks_total, stats.blocks_free, stats.applied_version) == (8, 5, 3)


def test_peak_lasts_until_it_was_told() -> None:
    """A peak in a frame that was not sent shows in the next statistics, once."""
    book = StatsBook()
    for at, peak in ((0.0, 5), (0.25, 90), (0.5, 7)):
        book.add(frame(at, 0, peak=peak))
    stats = take(book)
    assert (stats.tenants[0].kv_peak_bytes, stats.share_groups[0].kv_peak_bytes) == (90, 90)
    book.add(frame(0.75, 0, peak=7))
    stats = take(book)
    assert (stats.tenants[0].kv_peak_bytes, stats.share_groups[0].kv_peak_bytes) == (7, 7)


def test_share_groups_are_told_as_the_core_counts_them() -> None:
    """A group's account and what is registered for it come through; a dead core's groups are gone."""
    book = StatsBook()
    book.add(frame(0.0, 0, peak=8))
    told = pb.ShareGroupStats(
        name="g", kv_bytes=6, kv_peak_bytes=8, kv_cached_bytes=4, num_prefixes=2, prefix_tokens=32
    )
    assert list(take(book).share_groups) == [told]
    book.core_lost()
    assert not take(book).share_groups


def test_counts_outlive_a_core() -> None:
    """A dead core's use is gone, its preemptions stay counted."""
    book = StatsBook()
    book.add(frame(1.0, 100, preemptions=4))
    book.core_lost()
    lost = take(book)
    assert (lost.running, len(lost.tenants), lost.num_preemptions) == (0, 0, 4)
    book.add(frame(2.0, 1, preemptions=1))
    assert take(book).num_preemptions == 5
    assert take(book).output_tokens_per_second == 0


def pair(by: str, of: str, cached_blocks: int = 0, num_preemptions: int = 0) -> ipc.Interference:
    """What one account has cost another."""
    return ipc.Interference(
        by=by,
        of=of,
        cached_blocks=cached_blocks,
        num_preemptions=num_preemptions,
        recomputed_tokens=0,
        swapped_bytes=0,
    )


def told(stats: pb.Stats) -> dict[tuple[str, str], int]:
    """The cached blocks of each pair that was told."""
    return {(one.by, one.of): one.cached_blocks for one in stats.interference}


def test_pairs_are_told_when_they_have_changed_and_all_of_them_when_asked() -> None:
    """Changes of several frames are told once, with their newest counts."""
    book = StatsBook()
    for at, pairs in ((0.0, [pair("a", "b", 1), pair("a", "c", 5)]), (0.25, [pair("a", "b", 2)]), (0.5, [])):
        book.add(msgspec.structs.replace(frame(at, 0), interference=pairs))
    assert told(take(book)) == {("a", "b"): 2, ("a", "c"): 5}
    assert told(take(book)) == {}
    book.add(msgspec.structs.replace(frame(0.75, 0), interference=[pair("a", "c", 6)]))
    complete = book.take(block_bytes=4, applied_version=3, core_ready=True, complete=True)
    assert told(complete) == {("a", "b"): 2, ("a", "c"): 6}
    assert told(take(book)) == {}


def test_a_forgotten_pair_is_told_once_and_gone() -> None:
    """Its last news is zeros; complete statistics no longer have it."""
    book = StatsBook()
    book.add(msgspec.structs.replace(frame(0.0, 0), interference=[pair("a", "b", 1)]))
    take(book)
    book.add(msgspec.structs.replace(frame(0.25, 0), interference=[pair("a", "b")]))
    assert told(take(book)) == {("a", "b"): 0}
    assert told(book.take(block_bytes=4, applied_version=3, core_ready=True, complete=True)) == {}


def test_a_new_core_counts_from_its_own_start() -> None:
    """Pairs of the dead one are gone, and the time from which all counts is another; without a core there is none."""
    book = StatsBook()
    book.add(msgspec.structs.replace(frame(10.0, 0), interference=[pair("a", "b", 7)]))
    book.add(frame(10.25, 0))
    assert take(book).core_started_at == 10.0
    book.core_lost()
    assert (take(book).core_started_at, told(take(book))) == (0.0, {})
    book.add(msgspec.structs.replace(frame(20.0, 0), interference=[pair("a", "b", 2)]))
    stats = take(book)
    assert (stats.core_started_at, told(stats)) == (20.0, {("a", "b"): 2})


def test_pressure_and_a_tenants_counters_come_through() -> None:
    """As the core counts them."""
    book = StatsBook()
    use = ipc.TenantUse(
        tenant="a",
        kv_bytes=10,
        kv_peak_bytes=10,
        kv_borrowed_bytes=4,
        running=1,
        queued=2,
        output_tokens=9,
        above_soft_seconds=1.5,
        service=20.5,
        num_preemptions=3,
        recomputed_tokens=40,
        oldest_wait_seconds=0.5,
        weight=2.0,
        shadow=[ipc.ShadowCount(limit="max_running", refused=1, delayed=2)],
    )
    pressure = ipc.Pressure(score=0.5, use=0.25, borrowed=0.125, wait=0.75, swap=1.0)
    book.add(msgspec.structs.replace(frame(0.0, 9), tenants=[use], pressure=pressure))
    stats = take(book)
    assert stats.pressure == pb.Pressure(score=0.5, use=0.25, borrowed=0.125, wait=0.75, swap=1.0)
    assert stats.tenants[0] == pb.TenantStats(
        tenant="a",
        kv_bytes=10,
        kv_peak_bytes=10,
        kv_borrowed_bytes=4,
        running=1,
        queued=2,
        output_tokens=9,
        above_soft_seconds=1.5,
        service=20.5,
        num_preemptions=3,
        recomputed_tokens=40,
        oldest_wait_seconds=0.5,
        weight=2.0,
        shadow=[pb.ShadowCount(limit="max_running", refused=1, delayed=2)],
    )


def test_figures_of_tiers_and_sessions_are_passed_on() -> None:
    """Bytes, copies, hits, stalls and prefetches of the last frame; a tenant's disk bytes and sessions."""
    book = StatsBook()
    traffic = ipc.TierTraffic(source="host", target="disk", blocks=3, bytes=12, seconds=0.5, latencies=[0] * 12 + [3])
    use = ipc.TenantUse(
        tenant="a", kv_bytes=1, kv_peak_bytes=1, running=0, queued=0, output_tokens=0, disk_bytes=8, num_sessions=2
    )
    figures = {
        "disk_bytes_total": 100,
        "disk_bytes_used": 40,
        "disk_problem": "no space left",
        "disk_errors": 7,
        "tier_stall_seconds": 1.5,
        "prefetched_blocks": 9,
        "prefetched_used_blocks": 4,
        "num_sessions": 11,
        "prefix_asked_tokens": 500,
        "prefix_found_tokens": 300,
        "swap_chosen": 2,
        "recompute_chosen": 1,
    }
    last = msgspec.structs.replace(
        frame(1.0, 5), tenants=[use], traffic=[traffic], tier_hits={"host": 32, "disk": 16}, **figures
    )
    book.add(last)
    stats = take(book)
    assert {name: getattr(stats, name) for name in figures} == figures
    assert [(one.source, one.target, one.blocks, one.bytes) for one in stats.traffic] == [("host", "disk", 3, 12)]
    assert (stats.traffic[0].seconds, list(stats.traffic[0].latencies)) == (0.5, [0] * 12 + [3])
    assert {one.tier: one.tokens for one in stats.tier_hits} == {"host": 32, "disk": 16}
    assert (stats.tenants[0].disk_bytes, stats.tenants[0].num_sessions) == (8, 2)
