"""The helper process: a task on stdin, a report on stdout, then the end. `python -m engine.replay`

Started by the front, whose death ends it. It takes no processor time that anybody else wants. Exit status: 0 with a
report, 1 when it failed; stderr says why.
"""

import gc
import sys
import time

from engine.process import die_with_parent, give_way
from engine.replay import task


def main() -> int:
    """Answer one task."""
    began = time.monotonic()
    die_with_parent()
    give_way()
    gc.disable()  # it lives for seconds, and what it makes lasts as long
    from engine.replay.compare import answer  # after it has stepped back: to import takes the longest of the start

    report = answer(task.decode_task(sys.stdin.buffer.read()), began)
    sys.stdout.buffer.write(task.encode(report))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
