"""Lines of tenants before work that is done piece by piece."""

from collections import defaultdict
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from engine.constraints.fair import FairLines

TENANTS = ("whale", "minnow", "carp")
ARRIVALS = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 50)), max_size=4)  # what each will take


def served(lines: FairLines[float]) -> str:
    """Do the next piece; return whose it was, empty where nothing waits."""
    taken = lines.take()
    if taken is None:
        return ""
    tenant, seconds = taken
    lines.charge(tenant, seconds)
    return tenant


def test_a_tenants_own_work_is_done_in_its_order() -> None:
    """First come, first served."""
    lines: FairLines[str] = FairLines()
    for piece in "abc":
        lines.put("minnow", piece)
    assert len(lines) == 3
    assert [lines.take() for _ in range(4)] == [("minnow", "a"), ("minnow", "b"), ("minnow", "c"), None]


def test_service_counts_and_not_turns() -> None:
    """Whoever's pieces take nine times as long gets one turn in ten."""
    lines: FairLines[float] = FairLines()
    for _ in range(100):
        lines.put("whale", 9.0)
        lines.put("minnow", 1.0)
    turns = [served(lines) for _ in range(100)]
    assert 9 <= turns.count("whale") <= 11


def test_who_was_away_saved_nothing_and_owes_what_it_owed() -> None:
    """To wait for a time earns no turns in a row, and to leave for a moment makes nobody's debt less."""
    lines: FairLines[float] = FairLines()
    for _ in range(10):
        lines.put("whale", 5.0)
    assert [served(lines) for _ in range(4)] == ["whale"] * 4
    lines.put("minnow", 30.0)
    assert served(lines) == "minnow"
    lines.put("minnow", 1.0)
    assert [served(lines) for _ in range(5)] == ["whale"] * 5


def test_nothing_is_owed_once_nobody_waits() -> None:
    """Work that kept nobody waiting is nobody's debt."""
    lines: FairLines[float] = FairLines()
    lines.put("whale", 100.0)
    assert [served(lines), served(lines)] == ["whale", ""]
    for tenant in ("whale", "minnow"):
        for _ in range(2):
            lines.put(tenant, 1.0)
    assert [served(lines) for _ in range(4)] == ["whale", "minnow", "whale", "minnow"]


@given(st.lists(ARRIVALS, max_size=60))
def test_of_two_who_wait_neither_is_far_ahead(rounds: list[list[tuple[str, int]]]) -> None:
    """Over any time in which both wait, what they get differs by no more than the largest piece of each."""
    lines: FairLines[float] = FairLines()
    waiting: dict[str, int] = defaultdict(int)
    got: dict[str, float] = defaultdict(float)
    largest: dict[str, float] = defaultdict(float)
    spread: dict[tuple[str, str], list[float]] = {}  # of each two since both wait, how far the one was ahead
    for arrivals in rounds:
        for tenant, seconds in arrivals:
            lines.put(tenant, float(seconds))
            waiting[tenant] += 1
            largest[tenant] = max(largest[tenant], seconds)
        for pair in combinations(TENANTS, 2):
            if all(waiting[one] for one in pair):
                spread.setdefault(pair, []).append(got[pair[0]] - got[pair[1]])
            else:
                spread.pop(pair, None)
        taken = lines.take()
        if taken is not None:
            tenant, cost = taken
            got[tenant] += cost
            lines.charge(tenant, cost)
            waiting[tenant] -= 1
        for (one, other), ahead in spread.items():
            now = [*ahead, got[one] - got[other]]
            assert max(now) - min(now) <= largest[one] + largest[other]


@given(
    st.lists(st.tuples(st.sampled_from(["whale", "carp", "shark"]), st.integers(1, 50)), max_size=60),
    st.integers(0, 60),
)
def test_who_comes_waits_for_no_one_twice(flood: list[tuple[str, int]], count: int) -> None:
    """However much the others have in line, each has at most one turn before a tenant that has had nothing."""
    lines: FairLines[float] = FairLines()
    for tenant, seconds in flood:
        lines.put(tenant, float(seconds))
    for _ in range(min(count, len(flood))):
        served(lines)
    lines.put("minnow", 1.0)
    before = []
    while (tenant := served(lines)) != "minnow":
        before.append(tenant)
    assert len(before) == len(set(before))


@given(st.lists(st.sampled_from([*(f"t{number}" for number in range(9)), "serve"]), max_size=200))
def test_nothing_is_kept_of_who_is_gone(events: list[str]) -> None:
    """Whatever has come: all of it is served, and then nothing of it is left."""
    lines: FairLines[float] = FairLines()
    num_served = 0
    for event in events:
        if event == "serve":
            num_served += bool(served(lines))
        else:
            lines.put(event, 1.0)
    while served(lines):
        num_served += 1
    assert num_served == len(events) - events.count("serve")
    assert len(lines) == 0
    assert not any(vars(lines)[name] for name in ("_lines", "_seconds", "_turns"))
