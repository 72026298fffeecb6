"""A person: signs in by e-mail. An operator is a user with `is_staff`."""

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone


class UserManager(BaseUserManager["User"]):
    """Create and find users by e-mail, whatever its case."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """Create a user; without a password nobody can sign in as them."""
        email = email.strip().lower()
        if not email:
            raise ValueError("a user needs an e-mail address")
        user = self.model(email=email, **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """Create an operator; `manage.py createsuperuser` calls this."""
        return self.create_user(email, password, **{"is_staff": True, "is_superuser": True, **fields})

    def get_by_natural_key(self, username: str | None) -> "User":
        """Find a user by e-mail in any case."""
        return self.get(email=(username or "").strip().lower())


class User(AbstractBaseUser, PermissionsMixin):
    """A person. `is_staff` makes an operator, who stands above tenants."""

    email = models.EmailField(unique=True, max_length=254)
    name = models.CharField(max_length=150, blank=True)
    is_staff = models.BooleanField("operator", default=False)
    is_active = models.BooleanField(default=True)
    date_joined = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    EMAIL_FIELD = "email"
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        """One e-mail is one person: stored in lower case, which the database checks."""

        constraints = (models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower"),)

    def __str__(self) -> str:
        return self.email

    def get_full_name(self) -> str:
        """Return the name, or the e-mail of one who gave none."""
        return self.name or self.email

    def get_short_name(self) -> str:
        """Return the same as `get_full_name`."""
        return self.get_full_name()
