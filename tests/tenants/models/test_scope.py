"""The fail-closed manager."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.db import models

from tenants.contracts import Actor, TenantView
from tenants.errors import NoTenantScope
from tenants.models import ApiKey, GroupManager, Project, SharedPrefix, ShareGroup, TenantManager
from tenants.services.keys import create_api_key
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group

TENANT_TABLES = [
    model
    for model in apps.get_app_config("tenants").get_models()
    if any(field.attname == "tenant_id" for field in model._meta.concrete_fields)
]
GROUP_TABLES = [
    model
    for model in apps.get_app_config("tenants").get_models()
    if any(field.related_model is ShareGroup for field in model._meta.concrete_fields)
]
QUERIES: dict[str, Callable[[Any], Any]] = {
    "all": lambda manager: manager.all(),
    "filter": lambda manager: manager.filter(pk="x"),
    "exclude": lambda manager: manager.exclude(pk="x"),
    "get": lambda manager: manager.get(pk="x"),
    "first": lambda manager: manager.first(),
    "count": lambda manager: manager.count(),
    "exists": lambda manager: manager.exists(),
    "aggregate": lambda manager: manager.aggregate(n=models.Count("pk")),
    "values": lambda manager: manager.values("pk"),
    "in_bulk": lambda manager: manager.in_bulk(),
    "iterator": lambda manager: manager.iterator(),
    "raw": lambda manager: manager.raw("SELECT 1"),
    "update": lambda manager: manager.update(pk="x"),
    "create": lambda manager: manager.create(pk="x"),
    "bulk_create": lambda manager: manager.bulk_create([]),
    "get_or_create": lambda manager: manager.get_or_create(pk="x"),
    "select_for_update": lambda manager: manager.select_for_update(),
    "using": lambda manager: manager.using("default"),
}


@pytest.mark.parametrize("model", TENANT_TABLES, ids=lambda model: model.__name__)
def test_every_table_with_a_tenant_has_the_manager(model: type[models.Model]) -> None:
    """A new table cannot forget it."""
    assert isinstance(model._default_manager, TenantManager)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("model", TENANT_TABLES, ids=lambda model: model.__name__)
def test_a_query_without_a_tenant_raises(model: type[models.Model], query: Callable[[Any], Any]) -> None:
    """No method of the manager reads or writes without a scope, and none touches the database to find out."""
    with pytest.raises(NoTenantScope, match="for_tenant"):
        query(model._default_manager)


@pytest.mark.parametrize("nobody", [None, "", "acme", 7, "*", b"x"])
def test_a_scope_must_be_a_tenant_id(nobody: Any) -> None:
    """An id that got lost on the way (None, empty) is an error, not a query of everything or of nothing."""
    with pytest.raises(NoTenantScope):
        ApiKey.objects.for_tenant(nobody)


def test_a_scope_sees_its_tenant_alone(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """Rows of another tenant are not found by list, by id, by update or by delete."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    key = create_api_key(tenant_id=theirs.id, name="k", actor=actor).key
    scope = ApiKey.objects.for_tenant(mine.id)
    assert list(scope.all()) == []
    assert scope.filter(pk=key.id).first() is None
    assert scope.filter(models.Q(pk=key.id) | models.Q(name="k")).count() == 0
    assert scope.update(name="taken") == 0
    assert ApiKey.objects.for_tenant(theirs.id).get().name == "k"
    assert ApiKey.objects.across_tenants().count() == 1


def test_what_a_scope_creates_is_its_tenants(make_tenant: Callable[..., TenantView]) -> None:
    """A row made through a scope cannot be given to another tenant."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    row = Project.objects.for_tenant(mine.id).filter(name="x").create(name="x", tenant_id=uuid.UUID(theirs.id))
    assert str(row.tenant_id) == mine.id


def test_rows_have_no_side_door(tenant: TenantView, actor: Actor) -> None:
    """From a key one reaches its own tenant, and from a tenant no unscoped list of anything."""
    create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    row = ApiKey.objects.for_tenant(tenant.id).get()
    assert row.tenant.slug == "acme"
    row.refresh_from_db()
    reverse = [relation.get_accessor_name() for relation in type(row.tenant)._meta.related_objects]
    assert [name for name in reverse if name] == ["policy"]
    assert row.tenant.policy.tenant_id == row.tenant_id


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("model", GROUP_TABLES, ids=lambda model: model.__name__)
def test_a_query_without_a_share_group_raises(model: type[models.Model], query: Callable[[Any], Any]) -> None:
    """What belongs to a group is reached through its group alone, as a tenant's data through its tenant."""
    assert isinstance(model._default_manager, GroupManager)
    with pytest.raises(NoTenantScope, match="for_group"):
        query(model._default_manager)


@pytest.mark.parametrize("nothing", [None, "", 7, b"docs", ["docs"]])
def test_a_group_scope_must_be_a_name(nothing: Any) -> None:
    """A name that got lost on the way is an error, not a query of nothing."""
    with pytest.raises(NoTenantScope):
        SharedPrefix.objects.for_group(nothing)


def test_a_group_scope_sees_its_group_alone(db: None, actor: Actor) -> None:
    """Another group's prefixes are not found, changed or deleted."""
    for name in ("mine", "theirs"):
        create_share_group(name=name, description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    made = register_prefix(group="theirs", name="p", text="x", actor=actor)
    scope = SharedPrefix.objects.for_group("mine")
    assert not scope.filter(pk=made.id).exists()
    assert scope.update(name="taken") == 0
    scope.delete()
    assert SharedPrefix.objects.for_group("theirs").get().name == "p"
