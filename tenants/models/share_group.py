"""Share groups, and the prefixes that are registered for them.

Neither is a tenant's. A group is the operators', like a worker, and has a plain manager. A prefix is its group's:
whoever may see the group sees all of it, also what other members registered. So what a query of prefixes must name is
the group, and `GroupManager` fails closed on that (`scope.py`); whether a tenant is a member is asked before.
"""

import uuid
from typing import Any, Self

from django.contrib.postgres.expressions import ArraySubquery
from django.db import models
from django.db.models.functions import Cast, Coalesce, JSONObject, Length
from django.db.models.lookups import Exact, LessThanOrEqual
from django.utils import timezone

from tenants.models.policy import Policy
from tenants.models.scope import GroupManager
from tenants.models.tenant import SLUG_PATTERN, Tenant, new_secret
from tenants.rules.prefixes import MOST_BYTES, MOST_MESSAGES


def _whole(function: str, column: str) -> models.Func:
    """Return a whole number that a function of Postgres makes of a column."""
    return models.Func(models.F(column), function=function, output_field=models.IntegerField())


class ShareGroupQuerySet(models.QuerySet["ShareGroup"]):
    """Groups, with what is shown of them."""

    def live(self) -> Self:
        """Return those that have not been removed."""
        return self.filter(removed=False)

    def counted(self) -> Self:
        """Add `num_prefixes` and `member_slugs`, so that a list of groups is one query."""
        prefixes = SharedPrefix.objects.for_group(models.OuterRef("name")).order_by().values("group")
        members = Policy.objects.across_tenants().filter(share_group=models.OuterRef("name"))
        return self.annotate(
            num_prefixes=Coalesce(models.Subquery(prefixes.annotate(n=models.Count("pk")).values("n")), 0),
            member_slugs=ArraySubquery(members.order_by("tenant__slug").values("tenant__slug")),
        )

    def with_prefixes(self, *, contents: bool) -> Self:
        """Add `prefix_values`, the group's prefixes by the names of `contracts.SharedPrefixView`, in one statement."""
        what = {"messages": "messages", "text": "text"} if contents else {}
        value = JSONObject(
            id="id",
            group="group_id",
            name="name",
            tenant_id=Coalesce(Cast("registered_by_id", models.TextField()), models.Value("")),
            tenant_slug=Coalesce("registered_by__slug", models.Value("")),
            created_by="created_by",
            created_at="created_at",
            version="version",
            num_bytes="num_bytes",
            **what,
        )
        prefixes = SharedPrefix.objects.for_group(models.OuterRef("name")).order_by("name").values(value=value)
        return self.annotate(prefix_values=ArraySubquery(prefixes))


class ShareGroup(models.Model):
    """A group of tenants that share registered prefixes, with limits on an account of its own.

    A removed group stays as an empty row, so that whoever reads what is newer than a version learns of it. Its name may
    be used again: the row then comes back with a new secret.
    """

    name = models.CharField(primary_key=True, max_length=40)
    description = models.CharField(max_length=500, default="")
    version = models.BigIntegerField(unique=True)  # from the counter of policy versions
    kv_soft_bytes = models.BigIntegerField(default=0)
    kv_hard_bytes = models.BigIntegerField(default=256 << 20)
    secret = models.BinaryField(default=new_secret, editable=False)  # the KV namespace is derived from it
    removed = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    num_prefixes: int  # these two where `counted()` was asked for
    member_slugs: list[str]
    prefix_values: list[dict[str, Any]]  # where `with_prefixes()` was asked for

    objects = models.Manager.from_queryset(ShareGroupQuerySet)()

    class Meta:
        """What the services promise, the database checks; a trigger holds that policies name live groups alone."""

        constraints = (
            models.CheckConstraint(condition=models.Q(name__regex=SLUG_PATTERN), name="share_group_name_form"),
            models.CheckConstraint(condition=models.Q(version__gte=1), name="share_group_version_positive"),
            models.CheckConstraint(
                condition=models.Q(kv_soft_bytes__gte=0, kv_soft_bytes__lte=models.F("kv_hard_bytes")),
                name="share_group_soft_within_hard",
            ),
            models.CheckConstraint(
                condition=models.Q(removed=True) | models.Q(kv_hard_bytes__gte=1), name="share_group_hard_positive"
            ),
            models.CheckConstraint(
                condition=models.Q(removed=True) | models.Q(Exact(Length("secret"), 32)),
                name="share_group_secret_32_bytes",
            ),
            models.CheckConstraint(
                condition=models.Q(removed=False) | models.Q(Exact(Length("secret"), 0), kv_hard_bytes=0),
                name="share_group_removed_is_empty",
            ),
        )

    def __str__(self) -> str:
        return self.name


class SharedPrefix(models.Model):
    """The beginning of a chat or of a prompt, registered for a group. It never changes; removing it deletes the row."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    group = models.ForeignKey(ShareGroup, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=80)
    messages = models.JSONField(default=list)  # [{"role", "content"}]; empty where it is a text
    text = models.TextField(default="")
    num_bytes = models.PositiveIntegerField()  # UTF-8, of the text or of all messages' contents
    sha256 = models.CharField(max_length=64)  # what audit and outbox name the contents by, hex
    version = models.BigIntegerField()  # the group's, taken when it was registered
    # Not named `tenant`: it says who may remove the row, not who may see it.
    registered_by = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    created_by = models.CharField(max_length=254)  # the actor's label
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = GroupManager["SharedPrefix"]()

    class Meta:
        """What `rules.prefixes` validates, the database checks again."""

        constraints = (
            models.UniqueConstraint(fields=("group", "name"), name="shared_prefix_name_unique"),
            models.CheckConstraint(
                condition=models.Q(models.Q(text=""), ~models.Q(messages=[]))
                | models.Q(~models.Q(text=""), models.Q(messages=[])),
                name="shared_prefix_messages_or_text",
            ),
            models.CheckConstraint(
                condition=models.Q(num_bytes__gte=1, num_bytes__lte=MOST_BYTES), name="shared_prefix_size"
            ),
            models.CheckConstraint(
                condition=LessThanOrEqual(_whole("octet_length", "text"), MOST_BYTES),
                name="shared_prefix_text_size",
            ),
            models.CheckConstraint(
                condition=LessThanOrEqual(_whole("jsonb_array_length", "messages"), MOST_MESSAGES),
                name="shared_prefix_few_messages",
            ),
        )

    def __str__(self) -> str:
        return self.name
