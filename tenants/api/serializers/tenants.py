"""Tenants, projects, members, users."""

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Strict, Text, page_of
from tenants.api.serializers.policy import PolicyFields
from tenants.models.member import Role
from tenants.models.tenant import Status


class TenantAnswer(Answer):
    """A tenant."""

    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    colour = serializers.IntegerField(help_text="index into the console's order of tenant colours")
    time_zone = serializers.CharField()
    status = serializers.ChoiceField(choices=Status.choices)
    created_at = serializers.DateTimeField()


class TenantCreate(Strict):
    """A new tenant."""

    slug = Text(max_length=40, help_text="a-z, 0-9 and inner dashes; it never changes")
    name = Text(max_length=120)
    time_zone = Text(max_length=64, default="UTC")
    policy = PolicyFields(required=False, help_text="what differs from the default policy")


class TenantChange(Strict):
    """What of a tenant changes."""

    name = Text(max_length=120, required=False)
    time_zone = Text(max_length=64, required=False)
    status = serializers.ChoiceField(choices=Status.choices, required=False, help_text="operators only")


class ProjectAnswer(Answer):
    """A project."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    created_at = serializers.DateTimeField()


class ProjectWrite(Strict):
    """A project's name."""

    name = Text(max_length=80)


class MemberAnswer(Answer):
    """A member."""

    user_id = serializers.IntegerField()
    email = serializers.EmailField()
    name = serializers.CharField()
    role = serializers.ChoiceField(choices=Role.choices)
    created_at = serializers.DateTimeField()


class MemberWrite(Strict):
    """Who becomes what."""

    email = Text(max_length=254)
    role = serializers.ChoiceField(choices=Role.choices)


class UserAnswer(Answer):
    """A user."""

    id = serializers.IntegerField()
    email = serializers.EmailField()
    name = serializers.CharField()
    is_operator = serializers.BooleanField(source="is_staff")
    is_active = serializers.BooleanField()
    date_joined = serializers.DateTimeField()


class UserCreate(Strict):
    """A new user."""

    email = Text(max_length=254)
    password = Text(max_length=256, trim_whitespace=False)
    name = Text(max_length=150, default="", allow_blank=True)
    is_operator = serializers.BooleanField(default=False)


TenantPage = page_of(TenantAnswer, "Tenant")
ProjectPage = page_of(ProjectAnswer, "Project")
MemberPage = page_of(MemberAnswer, "Member")
UserPage = page_of(UserAnswer, "User")
