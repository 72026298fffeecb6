"""Django's admin shows and does not change."""

from collections.abc import Callable

import pytest
from django.contrib import admin
from django.test import Client, RequestFactory
from django.urls import path

from tenants.contracts import Actor, TenantView, WorkerView
from tenants.models import User
from tenants.services.keys import create_api_key, create_management_key
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group

urlpatterns = [path("admin/", admin.site.urls)]
OURS = [model for model in admin.site._registry if model._meta.app_label == "tenants"]


@pytest.mark.urls(__name__)
def test_an_operator_sees_every_table(
    tenant: TenantView,
    make_user: Callable[..., User],
    make_worker: Callable[..., WorkerView],
    actor: Actor,
    client: Client,
) -> None:
    """Lists and rows open, and show neither digest, nor secret, nor password hash."""
    made = create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    create_management_key(name="k", role="operator", actor=actor)
    make_worker()
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=actor)
    register_prefix(group="docs", name="p", text="x", actor=actor)
    boss = make_user("boss@example.com", tenant, "viewer", is_staff=True)
    boss.set_password("correct horse 9")
    boss.save()
    client.force_login(boss)
    for model in OURS:
        listing = client.get(f"/admin/tenants/{model._meta.model_name}/")
        assert listing.status_code == 200, model
        row = model._base_manager.first()
        if row is not None:
            page = client.get(f"/admin/tenants/{model._meta.model_name}/{row.pk}/change/")
            assert page.status_code == 200, model
            assert boss.password not in page.content.decode()
    key_page = client.get(f"/admin/tenants/apikey/{made.key.id}/change/").content.decode()
    assert "Digest" not in key_page


def test_nobody_changes_anything_there(db: None) -> None:
    """Also not a superuser: services write."""
    request = RequestFactory().get("/")
    request.user = User(email="root@example.com", is_staff=True, is_superuser=True)
    assert OURS
    for model in OURS:
        shown = admin.site._registry[model]
        assert shown.has_view_permission(request)
        assert not shown.has_add_permission(request)
        assert not shown.has_change_permission(request)
        assert not shown.has_delete_permission(request)
        assert set(shown.get_fields(request)) == set(shown.get_readonly_fields(request))


@pytest.mark.urls(__name__)
def test_a_member_does_not_get_in(tenant: TenantView, make_user: Callable[..., User], client: Client) -> None:
    """The admin is the operators'."""
    client.force_login(make_user("ada@example.com", tenant, "owner"))
    assert client.get("/admin/tenants/apikey/").status_code == 302
