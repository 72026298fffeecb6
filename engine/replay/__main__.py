"""The helper process: tasks on stdin, a report for each on stdout. `python -m engine.replay [NICENESS]`

Started by the front, whose death ends it. It takes no processor time that anybody else wants, unless told. Each task is
done by a child that ends with it, so that nothing of one is left for the next one, and a failure costs one answer.
"""

import gc
import os
import sys
import time
import traceback

from engine.process import die_with_parent, give_way
from engine.replay.frames import read_frame, write_frame

_STDIN, _STDOUT = 0, 1


def main() -> int:
    """Answer until stdin ends."""
    die_with_parent()
    give_way(*map(int, sys.argv[1:]))
    from engine.replay.compare import answer  # after it has stepped back: to import is most of what a start costs
    from engine.replay.task import decode_task, encode

    gc.collect()
    gc.freeze()  # shared with every child
    gc.disable()  # a child lives for seconds, and what it makes lasts as long
    while (task := read_frame(_STDIN)) is not None:
        began, parent = time.monotonic(), os.getpid()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                die_with_parent(parent)
                write_frame(_STDOUT, encode(answer(decode_task(task), began)))
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status:
            write_frame(_STDOUT, b"")
    return 0


if __name__ == "__main__":
    sys.exit(main())
