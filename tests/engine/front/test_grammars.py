"""Grammars at the front: judged by a process of their own, in turn, each once; requests wait until they are."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import ipc
from engine.front.grammars import MAX_TENANT_WAITING, MAX_TEXT_BYTES, MAX_WAITING, GrammarJudge, check_grammar
from engine.front.live_request import InvalidSubmitError
from engine.model.folder import ModelFolder, read_folder
from engine.protocol import pb
from engine.request import Grammar, GrammarKind
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import Client, Front, reap, watching_children

SCRIPTED = (sys.executable, "-m", "tests.engine.front.scripted_judge")
DEADLINE_SECONDS = 60
HUGE_SECONDS = 600.0

MakeJudge = Callable[..., GrammarJudge]


def lark(text: str) -> Grammar:
    """Return a grammar of this text."""
    return Grammar(GrammarKind.LARK, text)


class Asked:
    """Asks a judge, and waits for what it tells."""

    def __init__(self, judge: GrammarJudge) -> None:
        self.judge = judge
        self.told: list[tuple[str, str]] = []  # tenant and text, in the order of the verdicts

    def ask(self, text: str, tenant: str = "minnow") -> "asyncio.Future[pb.Refused | None]":
        """Ask about a Lark grammar."""
        return self.ask_about(lark(text), tenant)

    def ask_about(self, grammar: Grammar, tenant: str = "minnow") -> "asyncio.Future[pb.Refused | None]":
        """Ask about a grammar."""
        future: asyncio.Future[pb.Refused | None] = asyncio.get_running_loop().create_future()

        def tell(refused: pb.Refused | None) -> None:
            self.told.append((tenant, grammar.text))
            future.set_result(refused)

        self.judge.judge(tenant, grammar, tell)
        return future


async def verdict(future: "asyncio.Future[pb.Refused | None]") -> str:
    """Wait for a verdict; return why a grammar is refused, empty where it is not."""
    refused = await asyncio.wait_for(future, DEADLINE_SECONDS)
    if refused is None:
        return ""
    assert (refused.code, refused.field) == (pb.REFUSAL_CODE_INVALID, "grammar")
    return refused.message


@pytest.fixture
def model(tiny_model: Path) -> ModelFolder:
    """The tiny model."""
    return read_folder(tiny_model, name="tiny")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What a scripted judge was asked, a line each."""
    path = tmp_path / "asked"
    path.touch()
    return path


@pytest.fixture
def make_judge(model: ModelFolder, run: Run) -> Iterator[MakeJudge]:
    """Make judges, and leave nothing of them."""
    made: list[GrammarJudge] = []
    before = watching_children()

    def make(*arguments: object, **options: float) -> GrammarJudge:
        made.append(GrammarJudge(model, *arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for judge in made:
        judge.close()
    run(reap(before))


@pytest.fixture
def judge(make_judge: MakeJudge, log: Path) -> GrammarJudge:
    """A judge that does what grammars say."""
    return make_judge((*SCRIPTED, str(log)), judge_seconds=HUGE_SECONDS)


def test_real_judge(make_judge: MakeJudge, run: Run) -> None:
    """Each kind of grammar is read as the core reads it; the reason of a refusal is the library's own."""

    async def story() -> None:
        asked = Asked(make_judge())
        good = [
            Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
            Grammar(GrammarKind.REGEX, "[a-z]+"),
            lark('start: "a"+'),
        ]
        bad = [
            (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "objekt"}'), "objekt"),
            (Grammar(GrammarKind.JSON_SCHEMA, "{"), "JSON"),
            (Grammar(GrammarKind.REGEX, "[a-"), "regex"),
            (lark("start: nothing"), "nothing"),
        ]
        for grammar in good:
            assert await verdict(asked.ask_about(grammar)) == ""
        for grammar, reason in bad:
            assert reason in await verdict(asked.ask_about(grammar))

    run(story())


def test_grammars_that_are_too_much_work(make_judge: MakeJudge, run: Run) -> None:
    """What would take seconds of processor time ends the helper; the next grammar is judged by another one."""

    async def story() -> None:
        asked = Asked(make_judge())
        terms = " & ".join(f"/(.*[a-z]){{{count}}}.*/" for count in range(2, 14))
        assert "simpler" in await verdict(asked.ask(f"start: T\nT: {terms}"))
        assert await verdict(asked.ask('start: "a"')) == ""

    run(story())


def test_each_grammar_is_judged_once(judge: GrammarJudge, log: Path, run: Run) -> None:
    """Good or bad: a tenant that asks again, at the same time or later, gets the same verdict, and nobody is asked."""

    async def story() -> None:
        asked = Asked(judge)
        first = [asked.ask("bad"), asked.ask("bad"), asked.ask("good")]
        assert [await verdict(one) for one in first] == ["it is bad", "it is bad", ""]
        again = asked.ask("bad")
        assert again.done()
        assert await verdict(again) == "it is bad"

    run(story())
    assert log.read_text().split() == ["bad", "good"]


def test_what_another_tenant_asks_for_does_not_show(judge: GrammarJudge, log: Path, run: Run) -> None:
    """A verdict for one tenant is no quicker because another one has it, or waits for it."""

    async def story() -> None:
        asked = Asked(judge)
        waiting = [asked.ask("good", tenant) for tenant in ("whale", "minnow")]
        for one in waiting:
            assert await verdict(one) == ""
        late = asked.ask("good", "carp")
        assert not late.done()
        assert await verdict(late) == ""

    run(story())
    assert log.read_text().split() == ["good"] * 3


def test_verdicts_of_one_tenant_push_out_its_own_alone(
    make_judge: MakeJudge, log: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is so much room for a tenant's verdicts; who sends ever new grammars fills it, and nobody else's."""
    monkeypatch.setattr("engine.front.grammars.TENANT_KNOWN_BYTES", 1024)  # three verdicts, and not four

    async def story() -> None:
        asked = Asked(make_judge((*SCRIPTED, str(log)), judge_seconds=HUGE_SECONDS))
        for text, tenant in (("mine", "minnow"), *((f"w{number}", "whale") for number in range(5))):
            assert await verdict(asked.ask(text, tenant)) == ""
        kept = [asked.ask(text, "whale").done() for text in ("w4", "w3", "w0")]
        assert kept == [True, True, False]
        assert asked.ask("mine", "minnow").done()

    run(story())


def test_tenants_are_served_by_what_their_grammars_take(judge: GrammarJudge, log: Path, run: Run) -> None:
    """Who has many waits for who has one; of two, who has taken less time goes first."""

    async def story() -> None:
        asked = Asked(judge)
        waiting = [asked.ask(f"w{number}:3", "whale") for number in range(3)]
        waiting += [asked.ask(f"m{number}:1") for number in range(5)]
        for one in waiting:
            assert await verdict(one) == ""

    run(story())
    assert log.read_text().split() == ["w0:3", "m0:1", "m1:1", "m2:1", "w1:3", "m3:1", "m4:1", "w2:3"]


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_flood_of_expensive_grammars_keeps_nobody_waiting(
    judge: GrammarJudge, log: Path, run: Run, before: int
) -> None:
    """Whenever another tenant's comes: after the one that is being judged, each of the others has one turn at most."""
    tenants = ("whale", "shark", "orca")

    async def story() -> None:
        asked = Asked(judge)
        flood = [asked.ask(f"{tenant}{number}:5", tenant) for number in range(9) for tenant in tenants]
        for one in flood[:before]:
            assert await verdict(one) == ""
        done = len(asked.told)
        small = asked.ask("small:0.001")
        assert await verdict(small) == ""
        ahead = [tenant for tenant, _ in asked.told[done : asked.told.index(("minnow", "small:0.001"))]]
        assert len(ahead) <= 1 + len(tenants)
        assert all(ahead.count(tenant) <= 2 for tenant in tenants)
        judge.close()

    run(story())
    assert "small:0.001" in log.read_text().split()


def test_a_helper_that_was_broken_is_paid_for_by_who_broke_it(judge: GrammarJudge, log: Path, run: Run) -> None:
    """Whoever has killed the helper waits for all that others have by then."""

    async def story() -> None:
        asked = Asked(judge)
        deadly = [asked.ask("die", "whale"), asked.ask("hang", "whale")]
        small = asked.ask("small:0")
        assert "simpler" in await verdict(deadly[0])
        assert await verdict(small) == ""
        judge.close()

    run(story())
    assert log.read_text().split()[:2] == ["die", "small:0"]


def test_grammar_that_takes_too_long(make_judge: MakeJudge, log: Path, run: Run) -> None:
    """It is refused, its helper is given up, and others wait no longer for it than that."""

    async def story() -> None:
        asked = Asked(make_judge((*SCRIPTED, str(log)), judge_seconds=0.2))
        assert "more than 0.2 s" in await verdict(asked.ask("hang"))
        assert "more than 0.2 s" in await verdict(asked.ask("hang"))

    run(story())
    assert log.read_text().split() == ["hang"]


def test_grammar_that_kills_the_helper(judge: GrammarJudge, run: Run) -> None:
    """It is refused, and the next one is judged by a new helper."""

    async def story() -> None:
        asked = Asked(judge)
        deadly, good = asked.ask("die"), asked.ask("good")
        assert "simpler" in await verdict(deadly)
        assert await verdict(good) == ""

    run(story())


def test_helper_that_cannot_be_started(make_judge: MakeJudge, run: Run) -> None:
    """It says nothing about the grammar: the request may be sent again."""

    async def story() -> None:
        judge = make_judge(("/nonexistent/judge",))
        refused = await asyncio.wait_for(Asked(judge).ask("good"), DEADLINE_SECONDS)
        assert refused is not None
        assert (refused.code, refused.field) == (pb.REFUSAL_CODE_UNAVAILABLE, "")

    run(story())


def test_waiting_is_bounded(judge: GrammarJudge, run: Run) -> None:
    """One tenant can have so many requests wait, and all together so many."""

    async def story() -> None:
        asked = Asked(judge)
        for number in range(MAX_TENANT_WAITING):
            asked.ask(f"w{number}", "whale")
        full = await asked.ask("one more", "whale")
        assert full is not None
        assert (full.code, full.field) == (pb.REFUSAL_CODE_QUEUE_FULL, "grammar")
        assert "try again" in full.message
        for number in range(MAX_WAITING - MAX_TENANT_WAITING):
            asked.ask("good", f"tenant-{number}")
        full = await asked.ask("one more", "carp")
        assert full is not None
        assert full.code == pb.REFUSAL_CODE_UNAVAILABLE

    run(story())


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("grammar", {"grammar": pb.Grammar(text="x")}),
        ("grammar", {"grammar": pb.Grammar(kind=7, text="x")}),  # type: ignore[arg-type]
        ("grammar", {"grammar": pb.Grammar(kind=pb.Grammar.KIND_REGEX)}),
        ("grammar", {"grammar": pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="é" * (MAX_TEXT_BYTES // 2 + 1))}),
        ("ignore_eos", {"grammar": pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="x"), "ignore_eos": True}),
    ],
)
def test_what_cannot_be_a_grammar(field: str, changes: dict[str, object]) -> None:
    """It is refused before anybody judges it, with the field that is to be changed."""
    submit = pb.Submit(sampling=pb.Sampling(**changes))  # type: ignore[arg-type]
    with pytest.raises(InvalidSubmitError) as caught:
        check_grammar(submit)
    assert caught.value.field == field


def test_what_has_no_output_to_follow_a_grammar() -> None:
    """Neither an embedding nor a beam search takes one."""
    sampling = pb.Sampling(grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="x"))
    for submit in (
        pb.Submit(sampling=sampling, embed=True),
        pb.Submit(sampling=sampling, beam_search=pb.BeamSearch(width=2)),
    ):
        with pytest.raises(InvalidSubmitError) as caught:
            check_grammar(submit)
        assert caught.value.field == "grammar"


# ---------------------------------------------------------------- requests that wait for a verdict

REGEX = pb.Sampling(top_p=1, grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="[ab]+"))
BAD = pb.Sampling(top_p=1, grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="[ab"))


async def until_sent(front: Front) -> ipc.SubmitFrame:
    """Wait until the core gets a request."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not front.sent:  # noqa: ASYNC110  # the front tells nobody
            await asyncio.sleep(0.001)
    frame = front.sent.pop()
    assert isinstance(frame, ipc.SubmitFrame)
    return frame


def submit_of(client: Client, sampling: pb.Sampling) -> pb.Submit:
    """Return a request with a grammar."""
    return pb.Submit(
        stream=1,
        request_id=client.request_id,
        tenant="minnow",
        namespace=bytes(32),
        token_ids=[5, 6, 7],
        sampling=sampling,
    )


def test_request_goes_to_the_core_after_the_verdict(front: Front, run: Run) -> None:
    """With its grammar; then it is as any other."""

    async def story() -> None:
        client = Client(front)
        front.dispatcher.submit(client.connection, submit_of(client, REGEX))
        assert not front.sent
        frame = await until_sent(front)
        assert (frame.grammar_kind, frame.grammar) == ("regex", "[ab]+")
        known = Client(front)
        front.dispatcher.submit(known.connection, submit_of(known, REGEX))
        assert isinstance(front.sent.pop(), ipc.SubmitFrame)  # a verdict that is there delays nothing
        for one in (client, known):
            await one.leave()
        front.sent.clear()

    run(story())


def test_bad_grammar_is_refused(front: Front, run: Run) -> None:
    """The client hears why, the core hears nothing, and nothing is metered."""

    async def story() -> None:
        for _ in range(2):  # judged, then known
            client = Client(front)
            front.dispatcher.submit(client.connection, submit_of(client, BAD))
            await client.end()
            (event,) = client.events
            assert (event.refused.code, event.refused.field) == (pb.REFUSAL_CODE_INVALID, "grammar")
            assert "regex" in event.refused.message
            assert client.counted() is None
        assert not front.sent
        await asyncio.wait_for(front.dispatcher.idle.wait(), DEADLINE_SECONDS)

    run(story())


@pytest.mark.parametrize("way", ["cancel", "leave", "core lost"])
def test_request_that_ends_before_the_verdict(front: Front, run: Run, way: str) -> None:
    """It ends at once, and the verdict concerns nobody any more."""

    async def story() -> None:
        client = Client(front)
        sampling = pb.Sampling(top_p=1, grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text=f"{way.replace(' ', '_')}"))
        front.dispatcher.submit(client.connection, submit_of(client, sampling))
        if way == "cancel":
            front.dispatcher.cancel(client.connection, 1)
            await client.end()
            assert client.ends()[0].finished.reason == pb.FINISH_REASON_CANCELLED
        elif way == "leave":
            await client.close()
            front.sent.clear()
        else:
            front.dispatcher.end_all("the core is gone")
            await client.end()
            assert client.ends()[0].finished.reason == pb.FINISH_REASON_ERROR
        other = Client(front)
        front.dispatcher.submit(other.connection, submit_of(other, sampling))  # the same grammar: judged by then
        frame = await until_sent(front)
        assert frame.request_id == other.request_id
        assert not front.sent
        await other.leave()
        front.sent.clear()

    run(story())
