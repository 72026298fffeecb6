"""Changes to a deployment's database, one JSON line in, one out: a process with Django set up for that database.

{"do": "tenant", "slug": "a", "policy": {...}} -> {"id": ..., "version": ...}
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.db import connection  # noqa: E402

from tenants import selectors  # noqa: E402
from tenants.contracts import Actor, KeyOptions  # noqa: E402
from tenants.models import UsageRecord  # noqa: E402
from tenants.services import keys, members, policy, projects, tenants, users  # noqa: E402

ACTOR = Actor("system", "test", "test")


def tenant(slug: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Create a tenant."""
    view = tenants.create_tenant(slug=slug, name=slug, actor=ACTOR, policy=fields)
    return {"id": view.id}


def key(tenant_id: str, options: dict[str, Any]) -> dict[str, Any]:
    """Create an API key."""
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    created = keys.create_api_key(tenant_id=tenant_id, name="test", actor=ACTOR, options=KeyOptions(**known))
    return {"secret": created.secret, "key_id": created.key.id}


def operator() -> dict[str, Any]:
    """Create an operator's management key."""
    return {"secret": keys.create_management_key(name="test", role="operator", actor=ACTOR).secret}


def revoke(tenant_id: str, key_id: str) -> dict[str, Any]:
    """Revoke a key."""
    keys.revoke_key(key_id=key_id, tenant_id=tenant_id, actor=ACTOR)
    return {}


def change_policy(tenant_id: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Change a policy and return its version."""
    before = selectors.policy(tenant_id)
    assert before is not None
    view = policy.set_policy(tenant_id=tenant_id, expected_version=before.version, changes=changes, actor=ACTOR)
    return {"version": view.version}


def project(tenant_id: str, name: str) -> dict[str, Any]:
    """Create a project."""
    return {"id": projects.create_project(tenant_id=tenant_id, name=name, actor=ACTOR).id}


def usage(tenant_id: str) -> dict[str, Any]:
    """Return a tenant's usage records."""
    rows = UsageRecord.objects.for_tenant(tenant_id).values(
        "request_id", "prompt_tokens", "completion_tokens", "finish_reason", "key_id"
    )
    return {"records": list(rows)}


def session(tenant_id: str, email: str, role: str) -> dict[str, Any]:
    """Create a user, a member of the tenant with `role` (empty: a stranger), sign in and return the session key."""
    from importlib import import_module

    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

    user = users.create_user(email=email, password="correct horse battery", actor=ACTOR)
    if role:
        members.set_member(tenant_id=tenant_id, email=email, role=role, by_role="operator", actor=ACTOR)
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return {"session_key": store.session_key, "cookie": settings.SESSION_COOKIE_NAME}


def sign_out(session_key: str) -> dict[str, Any]:
    """End a console session."""
    from importlib import import_module

    from django.conf import settings

    import_module(settings.SESSION_ENGINE).SessionStore(session_key).flush()
    return {}


DOES: dict[str, Callable[..., dict[str, Any]]] = {
    "tenant": tenant,
    "key": key,
    "operator": operator,
    "revoke": revoke,
    "policy": change_policy,
    "usage": usage,
    "project": project,
    "session": session,
    "sign_out": sign_out,
}


def main() -> None:
    """Serve until stdin closes."""
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = DOES[arguments.pop("do")](**arguments)
        connection.close()  # a test may cut all connections before the next line
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
