"""Boosts."""

from typing import Any

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Moment, Strict, Text, Whole, page_of
from tenants.models.policy import Priority
from tenants.services.boosts import LONGEST, SHORTEST

_SHORTEST, _LONGEST = int(SHORTEST.total_seconds()), int(LONGEST.total_seconds())


class BoostLimits(serializers.Serializer[Any]):
    """The limits that a boost changes; `tenants.rules.policy` checks them."""

    weight = serializers.FloatField(required=False)
    kv_soft_bytes = serializers.IntegerField(required=False)
    kv_hard_bytes = serializers.IntegerField(required=False)
    max_running = serializers.IntegerField(required=False)
    max_queued = serializers.IntegerField(required=False)
    rpm = serializers.IntegerField(required=False)
    tpm = serializers.IntegerField(required=False)
    max_context = serializers.IntegerField(required=False)
    max_output = serializers.IntegerField(required=False)
    priority = serializers.ChoiceField(choices=Priority.choices, required=False)
    host_bytes = serializers.IntegerField(required=False)
    disk_bytes = serializers.IntegerField(required=False)


class UncheckedLimits(BoostLimits):
    """The same as a client sent them, once they are an object."""

    def to_internal_value(self, data: Any) -> dict[str, object]:
        """Return `data` as it came."""
        if not isinstance(data, dict):
            raise serializers.ValidationError("Write an object of the limits to change.")
        return data


class BoostStart(Strict):
    """A new boost: what changes, and until when."""

    changes = UncheckedLimits(help_text="limits of the policy and their values while the boost lasts")
    reason = Text(max_length=500, help_text="why, for those who read it later")
    duration_seconds = Whole(
        required=False, min_value=_SHORTEST, max_value=_LONGEST, help_text="how long it lasts; or name `ends_at`"
    )
    ends_at = Moment(required=False, help_text="1 minute to 30 days from now; or name `duration_seconds`")
    overcommit = serializers.BooleanField(default=False, help_text="as for a change of the policy")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Take one of the two ways to name the end."""
        if ("duration_seconds" in attrs) == ("ends_at" in attrs):
            raise serializers.ValidationError({"ends_at": "Name either duration_seconds or ends_at."})
        return attrs


class BoostAnswer(Answer):
    """A boost."""

    id = serializers.UUIDField()
    tenant = serializers.CharField(source="tenant_slug")
    changes = BoostLimits()
    before = BoostLimits(help_text="the same limits as they were")
    reason = serializers.CharField()
    started_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="null: it is in force")
    started_version = serializers.IntegerField(help_text="of the policy: `policy-versions/{version}/acks/`")
    ended_version = serializers.IntegerField(
        allow_null=True, help_text="null: it is in force, or nothing was left to put back"
    )
    created_by = serializers.CharField()


BoostPage = page_of(BoostAnswer, "Boost")
