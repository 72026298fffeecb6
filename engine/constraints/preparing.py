"""Prepares grammars in a thread of its own, one after the other, and keeps those that were asked for last.

Always of the tenant whose grammars have taken the least time. What is kept is each tenant's own: see `Shelf`.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from engine.constraints.base import Constraint
from engine.constraints.fair import LEAST_SECONDS, FairLines
from engine.constraints.shelf import Shelf
from engine.errors import GrammarError
from engine.request import Grammar

_NICENESS = 5  # of the thread: on a busy machine it gets a quarter of what the model's threads get
MAX_KEPT = 32  # grammars, of no more than `engine.constraints.__main__` lets pass each: what runs keeps its own beside
MAX_TENANT_KEPT = 16  # of them, one tenant's


class Compiled(Protocol):
    """A grammar that can be followed."""

    def constraint(self, ends: frozenset[int]) -> Constraint:
        """Return a constraint at the beginning; `ends` may come wherever the grammar may end."""
        ...


Compile = Callable[[Grammar], Compiled]  # raises GrammarError: it is none, or too much work


class GrammarInWork:
    """Implements `Preparation`. The thread writes it once, the loop reads it."""

    __slots__ = ("__weakref__", "_compiled", "grammar", "problem")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.problem = ""
        self._compiled: Compiled | None = None

    @property
    def is_done(self) -> bool:
        """Whether it is prepared, or never will be."""
        return self._compiled is not None or bool(self.problem)

    def constraint(self, ends: frozenset[int]) -> Constraint:
        """Return a constraint at the beginning."""
        assert self._compiled is not None, "only what is prepared can be followed"
        return self._compiled.constraint(ends)

    def prepare(self, compile_grammar: Compile) -> None:
        """Prepare it. Raises GrammarError."""
        self._compiled = compile_grammar(self.grammar)


class GrammarThread:
    """Implements `Grammars`. Nothing is read and nothing imported before the first grammar comes.

    What has been pushed out of those that are kept, and whose requests have all ended, is passed over: a client that
    sends grammars and leaves can't make others wait for all of them.
    """

    def __init__(self, open_compiler: Callable[[], Compile], *, clock: Callable[[], float] = time.thread_time) -> None:
        """Start nothing yet.

        Args:
            open_compiler: reads what the model's grammars are compiled with; raises GrammarError where none can be.
            clock: seconds that the thread has worked.
        """
        self._open_compiler = open_compiler
        self._clock = clock
        self._kept: Shelf[Grammar, GrammarInWork] = Shelf(MAX_KEPT, tenant_most=MAX_TENANT_KEPT)
        self._lines: FairLines[weakref.ref[GrammarInWork]] = FairLines()  # shared with the thread
        self._arrived = threading.Condition()
        self._thread: threading.Thread | None = None

    def prepare(self, tenant: str, grammar: Grammar) -> GrammarInWork:
        """Begin to prepare a tenant's grammar, unless it is at hand."""
        work = self._kept.get(tenant, grammar)
        if work is None:
            work = GrammarInWork(grammar)
            self._kept.put(tenant, grammar, work)
            with self._arrived:
                self._lines.put(tenant, weakref.ref(work))
                self._arrived.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        return work

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        compile_grammar: Compile | None = None
        while True:
            tenant, reference = self._take()
            work, began, least = reference(), self._clock(), 0.0
            if work is not None:
                least = LEAST_SECONDS
                try:
                    if compile_grammar is None:
                        compile_grammar = self._open_compiler()
                        began = self._clock()  # what the first one takes is nobody's fault
                    work.prepare(compile_grammar)
                except GrammarError as error:
                    work.problem = str(error)
                except BaseException as error:  # noqa: BLE001  # nobody may wait for ever
                    work.problem = f"the grammar cannot be prepared: {error}"
            del work  # while the thread waits for the next one it keeps none
            with self._arrived:
                self._lines.charge(tenant, max(self._clock() - began, least))

    def _take(self) -> tuple[str, "weakref.ref[GrammarInWork]"]:
        with self._arrived:
            while (taken := self._lines.take()) is None:
                self._arrived.wait()
            return taken
