"""A process that writes, gives up and erases blocks until it is killed: see test_crash.py.

    python -m tests.engine.disk.writer FOLDER SEED

It says `ready` once the store is open, and then the number of each session whose erasure is over.
"""

import random
import sys
import time
from pathlib import Path

from engine.disk.events import Erased
from tests.engine.disk.stores import SLOT_BYTES, STRIDE, content, key, make_store


def main() -> None:
    """Write for ever."""
    folder, draw = Path(sys.argv[1]), random.Random(sys.argv[2])
    store = make_store(folder, 24)
    store.limit("plain", 16 * STRIDE)
    store.limit("secret", 16 * STRIDE, b"s" * 32)
    print("ready", flush=True)
    tickets: dict[int, int] = {}
    number = 0
    while True:
        number += 1
        of = draw.randrange(200)
        owner = ("plain", "secret")[of % 2]
        store.write(key(of), owner, memoryview(content(key(of))))
        if draw.random() < 0.3:
            store.drop([key(draw.randrange(200)) for _ in range(3)])
        if draw.random() < 0.2:
            store.put_session(owner, f"chat {number}", b"planted in chat %d." % number * 9)
            tickets[store.drop_session(owner, f"chat {number}")] = number
        if draw.random() < 0.02:
            store.limit("plain", draw.randrange(1, 16) * STRIDE + SLOT_BYTES)
        for event in store.poll():
            if isinstance(event, Erased) and event.ticket in tickets:
                print(tickets.pop(event.ticket), flush=True)
        if number % 8 == 0:
            time.sleep(0.001)  # the threads have their turn


if __name__ == "__main__":
    main()
