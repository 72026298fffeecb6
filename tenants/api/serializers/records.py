"""Usage, audit, workers."""

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Moment, Strict, Text, page_of

FINISH_REASONS = ("stop", "length", "cancelled", "error")


class UsageQuery(Strict):
    """Which usage records: finished from `since` (inclusive) to `until` (exclusive)."""

    tenant = serializers.SlugField(max_length=40, required=False)
    project_id = serializers.UUIDField(required=False)
    key_id = Text(max_length=32, required=False)
    session = Text(max_length=256, required=False)
    model = Text(max_length=200, required=False)
    finish_reason = serializers.ChoiceField(choices=FINISH_REASONS, required=False)
    since = Moment(required=False)
    until = Moment(required=False)


class UsageAnswer(Answer):
    """What one request used."""

    request_id = serializers.CharField()
    tenant = serializers.CharField(allow_null=True, help_text="slug; null: nobody's")
    project_id = serializers.UUIDField(allow_null=True)
    key_id = serializers.CharField()
    session = serializers.CharField()
    model = serializers.CharField()
    worker_id = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    kv_device_byte_seconds = serializers.FloatField()
    queue_seconds = serializers.FloatField()
    ttft_seconds = serializers.FloatField(help_text="0: no token came")
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField()
    finish_reason = serializers.CharField()
    num_preemptions = serializers.IntegerField()


class AuditQuery(Strict):
    """Which audit events."""

    action = Text(max_length=64, required=False)
    target_kind = Text(max_length=32, required=False)
    target_id = Text(max_length=128, required=False)
    since = Moment(required=False)
    until = Moment(required=False)


class AuditAnswer(Answer):
    """One change."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor_kind = serializers.CharField()
    actor_id = serializers.CharField()
    actor_label = serializers.CharField()
    action = serializers.CharField()
    target_kind = serializers.CharField()
    target_id = serializers.CharField()
    tenant_id = serializers.UUIDField(allow_null=True)
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


UsagePage = page_of(UsageAnswer, "Usage")
AuditPage = page_of(AuditAnswer, "Audit")
