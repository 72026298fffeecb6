"""Prometheus metrics: what web processes count of requests, and what workers told last. Served at `/metrics`."""
