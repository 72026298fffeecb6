"""Statistics over the last second."""

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
