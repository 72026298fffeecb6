"""Policy and acks."""

import uuid
from typing import Any

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Strict, Unchecked, Whole, page_of
from tenants.contracts import PolicyAcks
from tenants.models.policy import Priority


class ShadowFields(serializers.Serializer[Any]):
    """Limits on trial: what they would have refused or delayed is counted, nothing is. Null: not on trial."""

    kv_hard_bytes = serializers.IntegerField(required=False, allow_null=True)
    max_running = serializers.IntegerField(required=False, allow_null=True)
    max_queued = serializers.IntegerField(required=False, allow_null=True)
    max_context = serializers.IntegerField(required=False, allow_null=True)
    max_output = serializers.IntegerField(required=False, allow_null=True)
    rpm = serializers.IntegerField(required=False, allow_null=True)
    tpm = serializers.IntegerField(required=False, allow_null=True)


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
    host_bytes = serializers.IntegerField(
        required=False, help_text="ceiling of swapped KV in host RAM; 0: nothing is swapped, it is computed again"
    )
    disk_bytes = serializers.IntegerField(
        required=False, help_text="ceiling of KV on disk; 0: nothing of it is kept on disk"
    )
    encrypt_disk = serializers.BooleanField(
        required=False,
        help_text="what is on disk is encrypted with a secret of the tenant's own; a change gives up what is there",
    )
    shadow = ShadowFields(
        required=False, allow_null=True, help_text="limits on trial; those not named stay, null takes one or all off"
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
    host_bytes = serializers.IntegerField()
    disk_bytes = serializers.IntegerField()
    encrypt_disk = serializers.BooleanField()
    shadow = ShadowFields()


class TrialAnswer(Answer):
    """A limit on trial, and what it would have done."""

    limit = serializers.CharField(help_text="a field of `shadow`")
    value = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="requests that it would have refused")
    delayed = serializers.IntegerField(help_text="requests that it would have delayed")


class TrialsAnswer(Answer):
    """A tenant's limits on trial. Workers count since their core started, the gateway since the value was set."""

    trials = TrialAnswer(many=True)


class PolicyRevert(Strict):
    """The version to go back to."""

    version = Whole(help_text="of the tenant's history")
    overcommit = serializers.BooleanField(default=False, help_text="as for a change of the policy")


class PolicyVersionAnswer(Answer):
    """One version of a tenant's history."""

    version = serializers.IntegerField()
    policy = PolicyAnswer(help_text="the whole policy as it was")
    changed_at = serializers.DateTimeField()
    changed_by = serializers.CharField(help_text="empty: it was so before there was a history")
    action = serializers.CharField(help_text="policy.changed, policy.reverted, boost.started, boost.ended, …")
    changed = serializers.ListField(
        child=serializers.CharField(), help_text="fields that differ from the version before"
    )


PolicyVersionPage = page_of(PolicyVersionAnswer, "PolicyVersion")


class GuaranteesAnswer(Answer):
    """The guarantees of all tenants and share groups against the pools of the live workers."""

    pool_bytes = serializers.IntegerField()
    room_bytes = serializers.IntegerField(help_text="what may be guaranteed without overcommit")
    guaranteed_bytes = serializers.IntegerField()
    factor = serializers.FloatField(help_text="0 to 1: what is left of each guarantee")


class WorkerAckAnswer(Answer):
    """One live worker's ack; nulls until it has applied the version."""

    worker_id = serializers.CharField()
    applied_at = serializers.DateTimeField(allow_null=True)
    ms = serializers.FloatField(allow_null=True, help_text="milliseconds after the commit")
    settled_at = serializers.DateTimeField(
        allow_null=True, help_text="when nobody was above the limits any more; null: not yet, or it does not say"
    )
    over_bytes = serializers.IntegerField(help_text="device KV above the limits when it was applied")
    settle_seconds = serializers.FloatField(help_text="how long the worker thought that it would take")


class AcksAnswer(Answer):
    """How far a policy version has come on the live workers."""

    version = serializers.IntegerField()
    tenant_id = serializers.SerializerMethodField(help_text="null: the version is a share group's")
    share_group = serializers.CharField(help_text="empty: the version is a tenant's")
    changed_at = serializers.DateTimeField()
    applied = serializers.IntegerField(help_text="workers that have applied it")
    of = serializers.IntegerField(help_text="live workers")
    ms = serializers.FloatField(allow_null=True, help_text="of the slowest, once all have applied it")
    settled = serializers.IntegerField(help_text="workers on which nobody is above the limits any more")
    workers = WorkerAckAnswer(many=True)

    def get_tenant_id(self, acks: PolicyAcks) -> uuid.UUID | None:
        """Return whose policy it was."""
        return uuid.UUID(acks.tenant_id) if acks.tenant_id else None
