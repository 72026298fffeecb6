"""Who may start a request now: rates, shared by all web processes."""
