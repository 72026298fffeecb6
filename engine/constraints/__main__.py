"""The helper process that judges grammars: `python -m engine.constraints TOKENIZER_JSON VOCAB_SIZE EOS_TOKEN_ID ...`

A question on stdin, a verdict on stdout, one after the other. Started by the front, whose death ends it.

It does with a grammar what the core will do, with less room: a grammar that is too deep, too large or too slow ends
this process or is given up with it, and the core never sees it.
"""

import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from engine.constraints.heap import bounded
from engine.constraints.judge import Verdict, decode_question, encode, grammar_of
from engine.errors import GrammarError
from engine.process import die_with_parent
from engine.replay.frames import read_frame, write_frame

_STDIN, _STDOUT = 0, 1
_STACK_BYTES = 4 << 20  # half of what the core's threads have
_MEMORY_BYTES = 256 << 20  # beyond what the vocabulary takes
_CPU_SECONDS = 3.0  # of processor time for one grammar: how busy the machine is makes no difference
_PAGE_BYTES = resource.getpagesize()


def main() -> int:
    """Answer until stdin ends."""
    die_with_parent()
    threading.stack_size(_STACK_BYTES)
    worker = threading.Thread(target=_answer, name="grammars")
    worker.start()
    worker.join()
    return 0


def _answer() -> None:
    from engine.constraints.compile import open_compiler  # imports llguidance
    from engine.constraints.trial import try_out

    path, size, *eos_token_ids = sys.argv[1:]
    ends = [int(token) for token in eos_token_ids]
    compile_grammar, never = None, ""
    try:
        compile_grammar = open_compiler(Path(path).read_bytes(), int(size), ends)
    except GrammarError as error:
        never = str(error)
    _limit_memory()
    while (frame := read_frame(_STDIN)) is not None:
        question, verdict = decode_question(frame), Verdict(never)
        if question.kind and compile_grammar is not None:
            signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)  # whose signal ends the process
            began, problem = time.process_time(), ""
            try:
                try_out(bounded(partial(compile_grammar, grammar_of(question))), frozenset(ends))
            except GrammarError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001  # of the library: what it can't do with a grammar here, it can't in the core
                problem = f"the grammar cannot be prepared: {error}"
            verdict = Verdict(problem, time.process_time() - began)
            signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(_STDOUT, encode(verdict))


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, hard))


if __name__ == "__main__":
    sys.exit(main())
