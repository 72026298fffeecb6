"""Users."""

from io import StringIO

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command

from tenants.models import User


def test_the_first_operator_is_made_on_the_command_line(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`manage.py createsuperuser` asks for an e-mail, not for a user name."""
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "correct horse 9")
    call_command("createsuperuser", "--noinput", email="Boss@Example.com", stdout=StringIO())
    user = authenticate(username="boss@example.com", password="correct horse 9")
    assert isinstance(user, User)
    assert user.is_staff


def test_without_a_password_nobody_signs_in(db: None) -> None:
    """A user made without one has no usable password, and an e-mail is needed."""
    user = User.objects.create_user(" Ada@Example.com ")
    assert (user.email, user.has_usable_password(), user.is_staff) == ("ada@example.com", False, False)
    assert user.get_short_name() == "ada@example.com"
    with pytest.raises(ValueError, match="e-mail"):
        User.objects.create_user(" ")
