"""The controller: one active process that carries policy to the workers and acks, stats and usage back.

main         process: signals, election, one spell of leadership after another        START HERE
leadership   the advisory lock and LISTEN, on one connection
fleet        a spell of leadership: reads the truth, plans pushes, keeps one link per worker
link         one worker's Control stream, opened again with back-off
holders      tenants and share groups: who holds limits, and what a worker is granted of them (pure)
grants       fleet-wide limits divided into workers' grants (pure)
sharing      share groups, and their prefixes in each worker's own tokens
prefixes     a registered prefix tokenised: what all requests that go on from it have in common
demand       which worker a tenant's limits are needed on: shares that follow use and queues (pure)
notes        the most that workers may hold, for a successor (pure)
balance      demand applied to the ledger, as workers tell their use
boosts       boosts ended when their time comes
ledger       what each worker holds; who may grow, who must shrink first (pure)
messages     the protocol's messages to values and back (pure)
truth        policies, share groups and workers as read from Postgres, at one moment
usage        usage records into Postgres, acked after commit
acks         acks into Postgres, and "applied on n/m in X ms"
threads      Django's ORM kept off the event loop
"""
