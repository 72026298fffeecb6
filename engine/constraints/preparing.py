"""Prepares grammars in a thread of its own, one after the other, and keeps those that were asked for last."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from engine.constraints.base import Constraint
from engine.errors import GrammarError
from engine.request import Grammar

_NICENESS = 5  # of the thread: on a busy machine it gets a quarter of what the model's threads get
MAX_KEPT = 32  # grammars: what waits or runs keeps its own beside them


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

    def __init__(self, open_compiler: Callable[[], Compile]) -> None:
        """Start nothing yet.

        Args:
            open_compiler: reads what the model's grammars are compiled with; raises GrammarError where none can be.
        """
        self._open_compiler = open_compiler
        self._kept: OrderedDict[Grammar, GrammarInWork] = OrderedDict()
        self._queue: SimpleQueue[weakref.ref[GrammarInWork]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def prepare(self, grammar: Grammar) -> GrammarInWork:
        """Begin to prepare a grammar, unless it is at hand."""
        work = self._kept.get(grammar)
        if work is None:
            work = self._kept[grammar] = GrammarInWork(grammar)
            self._queue.put(weakref.ref(work))
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        return work

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        compile_grammar: Compile | None = None
        while True:
            work = self._queue.get()()
            if work is None:
                continue
            try:
                compile_grammar = compile_grammar or self._open_compiler()
                work.prepare(compile_grammar)
            except GrammarError as error:
                work.problem = str(error)
            except BaseException as error:  # noqa: BLE001  # nobody may wait for ever
                work.problem = f"the grammar cannot be prepared: {error}"
            del work  # while the thread waits for the next one it keeps none
