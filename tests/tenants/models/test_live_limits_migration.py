"""Live limits come into a database that has policies already, and go out of it again."""

import pytest
from django.core.management import call_command
from django.db import connection

from tenants import selectors
from tenants.models import PolicyVersion
from tenants.services.policy import revert_policy, set_policy
from tenants.services.tenants import create_tenant
from tests.tenants.services.test_policy import ACTOR, current


@pytest.mark.django_db(transaction=True)
def test_the_policy_in_force_is_the_first_of_the_history() -> None:
    """What was changed before there was a history cannot be brought back; what is in force then can."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    first = current(tenant).version
    before = set_policy(tenant_id=tenant.id, expected_version=first, changes={"rpm": 5, "weight": 2}, actor=ACTOR)
    try:
        call_command("migrate", "tenants", "0003", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("SELECT version, rpm FROM tenants_policy")
            assert cursor.fetchall() == [(before.version, 5)]
    finally:
        call_command("migrate", "tenants", verbosity=0)
    assert current(tenant) == before
    assert [made.policy for made in selectors.policy_history(tenant.id)] == [before]
    assert PolicyVersion.objects.for_tenant(tenant.id).count() == 2
    later = set_policy(tenant_id=tenant.id, expected_version=before.version, changes={"rpm": 9}, actor=ACTOR)
    back = revert_policy(tenant_id=tenant.id, version=before.version, expected_version=later.version, actor=ACTOR)
    assert (back.rpm, back.weight) == (5, 2.0)
