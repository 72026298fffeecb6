"""Turn DATABASE_URL into Django's settings and psycopg's connection string: one parser for both."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.config import ConfigError


def django_database(url: str) -> dict[str, Any]:
    """Return a `DATABASES` entry for a `postgres://` URL; `?host=/dir` names a socket folder.

    Raises:
        ConfigError: the URL is not one of Postgres.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise ConfigError(f"DATABASE_URL={url!r}: write postgres://user:password@host:5432/name")
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or query.pop("user", "")),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": query,
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 60,
    }


def conninfo(database: dict[str, Any]) -> str:
    """Return psycopg's connection string for a `DATABASES` entry; used by the processes that LISTEN."""
    from psycopg.conninfo import make_conninfo

    fields = {
        "dbname": database["NAME"],
        "user": database["USER"],
        "password": database["PASSWORD"],
        "host": database["HOST"],
        "port": database["PORT"],
    }
    return make_conninfo(**{key: value for key, value in fields.items() if value}, **database["OPTIONS"])
