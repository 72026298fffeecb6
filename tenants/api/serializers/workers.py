"""Workers."""

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Strict, page_of


class WorkerAnswer(Answer):
    """A worker as it announced itself."""

    id = serializers.CharField()
    address = serializers.CharField()
    model = serializers.CharField()
    digest = serializers.CharField()
    kv_bytes = serializers.IntegerField()
    block_bytes = serializers.IntegerField()
    max_context = serializers.IntegerField()
    announced_at = serializers.DateTimeField()
    last_seen_at = serializers.DateTimeField()
    live = serializers.BooleanField(help_text="its last heartbeat is recent")
    draining = serializers.BooleanField(help_text="it takes no new requests; what runs on it goes on")
    applied_version = serializers.IntegerField(help_text="newest policy version that it enforces")
    applied_at = serializers.DateTimeField(allow_null=True)


class WorkerDrain(Strict):
    """Whether a worker drains."""

    draining = serializers.BooleanField(help_text="true: take no new requests; false: take them again")


WorkerPage = page_of(WorkerAnswer, "Worker")
