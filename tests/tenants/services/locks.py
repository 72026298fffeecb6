"""Wait until a race is where a test wants it."""

import threading

from django.db import connection


def wait_until_somebody_waits_for_a_lock() -> None:
    """Block until another connection is stuck behind a row lock of this one."""
    event = threading.Event()
    for _ in range(600):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            row = cursor.fetchone()
        if row and row[0]:
            return
        event.wait(0.01)
    raise AssertionError("nobody waits")
