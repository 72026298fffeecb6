"""Embedded mode: a private Postgres and Redis, and the supervised processes behind `manage.py up`."""
