"""Create users and set their passwords."""

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from tenants.contracts import Actor
from tenants.errors import Conflict, Invalid
from tenants.models import User
from tenants.rules import values
from tenants.services.journal import Change, write_down


@transaction.atomic
def create_user(*, email: str, password: str, actor: Actor, name: str = "", is_operator: bool = False) -> User:
    """Create a user who signs in with `email` and `password`.

    Raises:
        Invalid: names the field and the fix.
        Conflict: somebody has this e-mail.
    """
    address = values.text("email", email, longest=254).lower()
    checked_name = values.text("name", name, longest=150, shortest=0)
    try:
        validate_email(address)
    except ValidationError as error:
        raise Invalid("email", "email must be an address such as ada@example.com") from error
    user = User(email=address, name=checked_name, is_staff=is_operator)
    check_password(password, user)
    user.set_password(password)
    try:
        with transaction.atomic():  # a savepoint: the unique index decides, also between two who ask at once
            user.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"there is a user {address} already") from error
    after = {"email": address, "operator": is_operator}
    write_down(
        Change(action="user.created", target_kind="user", target_id=str(user.pk), tenant_id=None, after=after), actor
    )
    return user


def check_password(password: str, user: User) -> None:
    """Apply the deployment's password rules.

    Raises:
        Invalid: says which rule the password breaks.
    """
    values.text("password", password, longest=256)
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid("password", " ".join(error.messages)) from error
