"""Which worker serves a request."""
