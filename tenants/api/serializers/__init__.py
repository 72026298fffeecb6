"""Bodies of the management API. Requests are strict: a field that is not known is refused by name."""
