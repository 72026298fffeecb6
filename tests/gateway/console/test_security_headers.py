"""Headers of the pages."""

import pytest
from django.test import Client

from gateway.console import tenants
from tenants.models import User


def test_nothing_inline_runs(db: None) -> None:
    """Pages run scripts and styles of this host's files alone, and are framed by nobody."""
    answer = Client().get("/sign-in/")
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    page = answer.content.decode()
    assert " style=" not in page
    assert "<script>" not in page


def test_pages_are_not_kept(db: None) -> None:
    """What a signed-in reader saw is not left in a cache."""
    assert "no-store" in Client().get("/nowhere/").headers["Cache-Control"]


def test_missing_page_looks_like_ours(db: None) -> None:
    """A wrong address gets a page that leads back."""
    answer = Client().get("/nowhere/")
    assert answer.status_code == 404
    assert "Not here" in answer.content.decode()


def test_failure_says_whose_it_is(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours is a page that says so, in the same look, and tells nothing of the inside."""

    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(tenants, "readings", broken)
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_user("operator@example.com", is_staff=True))
    answer = client.get("/operator/tenants/")
    assert answer.status_code == 500
    assert "failed on our side" in answer.content.decode()
    assert "secret detail" not in answer.content.decode()
