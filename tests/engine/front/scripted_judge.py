"""A judge of grammars that does what their text says, and writes down what it was asked: `scripted_judge.py LOG ...`

"bad" is no grammar, "hang" is never done, "die" kills the judge, and everything else is well. Each is said to have
taken a second of processor time, or as many as the number behind a colon.
"""

import os
import sys
import threading
from pathlib import Path

from engine.constraints.judge import Verdict, decode_question, encode
from engine.process import die_with_parent
from engine.replay.frames import read_frame, write_frame


def main() -> None:
    """Judge until stdin ends."""
    die_with_parent()
    log = Path(sys.argv[1])
    while (frame := read_frame(0)) is not None:
        question = decode_question(frame)
        if question.kind:
            with log.open("a") as stream:
                stream.write(f"{question.text}\n")
        if question.text == "hang":
            threading.Event().wait()
        if question.text == "die":
            os._exit(1)
        _, _, seconds = question.text.partition(":")
        write_frame(1, encode(Verdict("it is bad" if question.text == "bad" else "", float(seconds or 1))))


if __name__ == "__main__":
    main()
