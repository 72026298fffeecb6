"""The controller: one active process that carries policy to the workers and acks, stats and usage back.

main         process: signals, election, one spell of leadership after another        START HERE
leadership   the advisory lock and LISTEN, on one connection
fleet        a spell of leadership: reads the truth, plans pushes, keeps one link per worker
link         one worker's Control stream, opened again with back-off
grants       fleet-wide limits divided into workers' grants (pure)
ledger       what each worker holds; who may grow, who must shrink first (pure)
messages     the protocol's messages to values and back (pure)
truth        policies and workers as read from Postgres
usage        usage records into Postgres, acked after commit
acks         acks into Postgres, and "applied on n/m in X ms"
threads      Django's ORM kept off the event loop
"""
