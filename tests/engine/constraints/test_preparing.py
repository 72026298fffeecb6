"""The thread that prepares grammars."""

import threading
import time
from collections.abc import Callable

from engine.constraints.base import Constraint
from engine.constraints.preparing import MAX_KEPT, MAX_TENANT_KEPT, Compile, GrammarInWork, GrammarThread
from engine.errors import GrammarError
from engine.request import Grammar
from tests.engine.alternating import Prepared, alternating

DEADLINE_SECONDS = 60


class Panic(BaseException):
    """What a library in another language throws."""


def wait(*works: GrammarInWork) -> None:
    """Wait until grammars are done."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not all(work.is_done for work in works):
        assert time.monotonic() < end
        time.sleep(0.001)


def prepare(thread: GrammarThread, text: str, tenant: str = "minnow") -> GrammarInWork:
    """Have a tenant's grammar of this text prepared."""
    return thread.prepare(tenant, alternating(text))


class Compiler:
    """Compiles what the test lets through, and counts; a number is a grammar that takes so many seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.compiled: list[str] = []
        self.num_opened = 0

    def open(self) -> Compile:
        """Open it."""
        self.num_opened += 1
        return self.compile

    def compile(self, grammar: Grammar) -> "Prepared":
        """Compile a grammar."""
        assert self.gate.wait(DEADLINE_SECONDS)
        self.compiled.append(grammar.text)
        self.seconds += float(grammar.text) if grammar.text.isdigit() else 0.0
        if grammar.text == "bad":
            raise GrammarError("it is bad")
        if grammar.text == "panic":
            raise Panic("the library broke")
        return Prepared(grammar.text, is_done=True)


def test_nothing_is_opened_before_the_first_grammar() -> None:
    """Most workers never see one."""
    compiler = Compiler()
    thread = GrammarThread(compiler.open)
    assert compiler.num_opened == 0
    wait(prepare(thread, "1"), prepare(thread, "2"))
    assert compiler.num_opened == 1


def test_prepare_returns_at_once() -> None:
    """Whatever the thread does: the loop looks again."""
    compiler = Compiler()
    compiler.gate.clear()
    thread = GrammarThread(compiler.open)
    work = prepare(thread, "1")
    assert not work.is_done
    assert prepare(thread, "1") is work
    compiler.gate.set()
    wait(work)
    constraint: Constraint = work.constraint(frozenset({900}))
    assert constraint.mask([], 0).any()
    assert compiler.compiled == ["1"]


def test_grammars_that_cannot_be_prepared() -> None:
    """Each says why, a library that panics included, and the next one is prepared all the same."""
    compiler = Compiler()
    thread = GrammarThread(compiler.open)
    bad, panic, good = (prepare(thread, text) for text in ("bad", "panic", "3"))
    wait(bad, panic, good)
    assert bad.problem == "it is bad"
    assert "the library broke" in panic.problem
    assert not good.problem


def test_model_that_no_grammar_can_be_used_with() -> None:
    """Each grammar is refused with the reason."""

    def open_compiler() -> Callable[[Grammar], Prepared]:
        raise GrammarError("this model has no end token")

    thread = GrammarThread(open_compiler)
    works = [prepare(thread, text) for text in "12"]
    wait(*works)
    assert [work.problem for work in works] == ["this model has no end token"] * 2


def test_grammars_that_were_not_asked_for_lately_are_given_up() -> None:
    """So many of a tenant's are kept, those that were asked for last; what is in use stays usable."""
    compiler = Compiler()
    thread = GrammarThread(compiler.open)
    first = prepare(thread, "0")
    works = [prepare(thread, str(number)) for number in range(1, MAX_TENANT_KEPT)]
    assert prepare(thread, "0") is first
    works.append(prepare(thread, str(MAX_TENANT_KEPT)))
    wait(first, *works)
    assert prepare(thread, "0") is first
    assert prepare(thread, "1") is not works[0]
    assert works[0].constraint(frozenset()).mask([], 0).any()


def test_tenants_have_grammars_of_their_own() -> None:
    """Whether one is at hand tells nobody what another tenant asks for; nor can one push out what others have."""
    thread = GrammarThread(Compiler().open)
    mine, other = prepare(thread, "1"), prepare(thread, "1", "whale")
    assert mine is not other
    for number in range(2, 3 * MAX_KEPT):
        prepare(thread, str(number), f"whale-{number % 4}")
    assert prepare(thread, "1") is mine
    wait(mine, other)


def test_a_flood_of_grammars_keeps_no_other_tenant_waiting() -> None:
    """Behind the one that is being prepared comes whoever has had least, however many of another's are in line."""
    compiler = Compiler()
    compiler.gate.clear()
    thread = GrammarThread(compiler.open, clock=lambda: compiler.seconds)
    flood = [prepare(thread, str(number), "whale") for number in range(50, 60)]
    small = [prepare(thread, str(number)) for number in range(1, 4)]
    compiler.gate.set()
    wait(*flood, *small)
    places = sorted(compiler.compiled.index(str(number)) for number in range(1, 4))
    assert places[-1] <= 4  # one is being prepared, and one may have been next when the first small one came


def test_what_nobody_waits_for_is_not_prepared() -> None:
    """Grammars of requests that have ended, beyond those that are kept anyway, cost no work."""
    compiler = Compiler()
    compiler.gate.clear()
    thread = GrammarThread(compiler.open)
    first = prepare(thread, "first")
    for number in range(3 * MAX_KEPT):
        prepare(thread, str(number))
    last = prepare(thread, "last")
    compiler.gate.set()
    wait(first, last)
    assert len(compiler.compiled) <= MAX_TENANT_KEPT + 1
    assert {"first", "last"} <= set(compiler.compiled)
