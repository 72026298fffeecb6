"""Policy and acks."""

import uuid

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Unchecked
from tenants.contracts import PolicyAcks
from tenants.models.policy import Priority


class PolicyFields(Unchecked):
    """The fields of a policy; `tenants.rules.policy` checks them."""

    weight = serializers.FloatField(required=False, help_text="share of service when tenants compete")
    kv_soft_bytes = serializers.IntegerField(required=False, help_text="guaranteed device KV")
    kv_hard_bytes = serializers.IntegerField(required=False, help_text="ceiling of device KV")
    max_running = serializers.IntegerField(required=False)
    max_queued = serializers.IntegerField(required=False)
    rpm = serializers.IntegerField(required=False, help_text="requests a minute; 0: no limit")
    tpm = serializers.IntegerField(required=False, help_text="tokens a minute; 0: no limit")
    max_context = serializers.IntegerField(required=False, help_text="tokens")
    max_output = serializers.IntegerField(required=False, help_text="tokens")
    priority = serializers.ChoiceField(choices=Priority.choices, required=False)

    share_group = serializers.CharField(
        required=False, allow_blank=True, help_text="whose registered prefixes its requests share; empty: none"
    )


class PolicyChange(PolicyFields):
    """The fields to change."""

    overcommit = serializers.BooleanField(
        required=False, help_text="allow guarantees that do not all fit the pool; they then scale down pro rata"
    )


class PolicyAnswer(Answer):
    """A policy; the ETag is its version."""

    version = serializers.IntegerField()
    weight = serializers.FloatField()
    kv_soft_bytes = serializers.IntegerField()
    kv_hard_bytes = serializers.IntegerField()
    max_running = serializers.IntegerField()
    max_queued = serializers.IntegerField()
    rpm = serializers.IntegerField()
    tpm = serializers.IntegerField()
    max_context = serializers.IntegerField()
    max_output = serializers.IntegerField()
    priority = serializers.ChoiceField(choices=Priority.choices)
    share_group = serializers.CharField(help_text="empty: none")


class WorkerAckAnswer(Answer):
    """One live worker's ack; nulls until it has applied the version."""

    worker_id = serializers.CharField()
    applied_at = serializers.DateTimeField(allow_null=True)
    ms = serializers.FloatField(allow_null=True, help_text="milliseconds after the commit")


class AcksAnswer(Answer):
    """How far a policy version has come on the live workers."""

    version = serializers.IntegerField()
    tenant_id = serializers.SerializerMethodField(help_text="null: the version is a share group's")
    share_group = serializers.CharField(help_text="empty: the version is a tenant's")
    changed_at = serializers.DateTimeField()
    applied = serializers.IntegerField(help_text="workers that have applied it")
    of = serializers.IntegerField(help_text="live workers")
    ms = serializers.FloatField(allow_null=True, help_text="of the slowest, once all have applied it")
    workers = WorkerAckAnswer(many=True)

    def get_tenant_id(self, acks: PolicyAcks) -> uuid.UUID | None:
        """Return whose policy it was."""
        return uuid.UUID(acks.tenant_id) if acks.tenant_id else None
