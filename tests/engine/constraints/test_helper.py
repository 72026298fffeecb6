"""The helper process that judges grammars, as the front speaks to it."""

import subprocess
import sys
from pathlib import Path

from engine.constraints.judge import Question, Verdict, decode_verdict, encode
from engine.replay.frames import HEADER
from tests.engine.constraints.vocabularies import ENDS, VOCAB_SIZE, tokenizer_json

DEADLINE_SECONDS = 120


def verdicts(folder: Path, *questions: Question) -> list[Verdict]:
    """Return what one helper says of each, until it ends."""
    path = folder / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    frames = [encode(question) for question in questions]
    said = subprocess.run(
        [sys.executable, "-m", "engine.constraints", str(path), str(VOCAB_SIZE), *map(str, ENDS)],
        input=b"".join(HEADER.pack(len(frame)) + frame for frame in frames),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_SECONDS,
        check=False,
    ).stdout
    told = []
    while said:
        (length,) = HEADER.unpack_from(said)
        told.append(decode_verdict(said[HEADER.size : HEADER.size + length]))
        said = said[HEADER.size + length :]
    return told


def test_a_verdict_says_what_it_took(tmp_path: Path) -> None:
    """Processor time for a grammar, which a coarse clock sees of a large one; none for a greeting."""
    names = ", ".join(f'"name{number}": {{"type": "string"}}' for number in range(1500))
    large = Question("json_schema", f'{{"type": "object", "properties": {{{names}}}}}')
    greeting, good, bad = verdicts(tmp_path, Question(), large, Question("regex", "[ab"))
    assert greeting == Verdict("", 0.0)
    assert not good.problem
    assert good.seconds > 0
    assert "regex" in bad.problem
    assert bad.seconds >= 0


def test_an_error_that_nobody_thought_of_is_a_refusal(tmp_path: Path) -> None:
    """It is told of that grammar, and the helper that met it judges the next one."""
    strange, good = verdicts(tmp_path, Question("cobol", "x"), Question("regex", "a"))
    assert "cobol" in strange.problem
    assert not good.problem


def test_what_takes_too_long_ends_the_helper(tmp_path: Path) -> None:
    """It has no verdict, and neither has what comes behind it: the front asks another helper."""
    terms = " & ".join(f"/(.*[a-z]){{{count}}}.*/" for count in range(2, 14))
    assert len(verdicts(tmp_path, Question(), Question("lark", f"start: T\nT: {terms}"), Question("regex", "a"))) == 1
