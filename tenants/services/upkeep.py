"""What may be late: retire expired keys, note last use, sweep what nobody reads any more."""

from datetime import timedelta

from django.db import connection, transaction
from django.db.models import F, Max, Q
from django.utils import timezone

from tenants.contracts import KEYS_CHANNEL, Actor
from tenants.models import ApiKey, ManagementKey, OutboxEvent, Policy, PolicyAck, PolicyVersion, ShareGroup
from tenants.services.journal import Change, notify, write_down

OUTBOX_DAYS = 14
ACK_DAYS = 30  # of versions of share groups as well, which keep no policy
POLICY_DAYS = 400  # of versions of a tenant's policy: so long one can be reverted to
_BATCH = 500
_LATENESS = timedelta(minutes=15)  # a usage record may come so late and still move its key's last use
_LOOK_BACK = timedelta(days=1)  # at most, after the beat has been away
_ACTOR = Actor("system", "upkeep", "key expiry")


def retire_expired_keys() -> int:
    """Mark keys whose time has passed as revoked, with an audit row each; return how many.

    They stopped working at their expiry; this writes it down and lets caches forget them.
    """
    return sum(_retire(model) for model in (ApiKey, ManagementKey))


@transaction.atomic
def _retire(model: type[ApiKey] | type[ManagementKey]) -> int:
    expired = model.objects.across_tenants().filter(revoked_at=None, expires_at__lte=timezone.now())
    locked = expired.select_for_update(skip_locked=True, of=("self",)).order_by("expires_at")
    due: list[ApiKey | ManagementKey] = list(locked[:_BATCH])
    kind = "api_key" if model is ApiKey else "management_key"
    for row in due:
        row.revoked_at = row.expires_at
        row.save(update_fields=["revoked_at"])
        after = {"name": row.name, "expires_at": row.expires_at.isoformat() if row.expires_at else None}
        change = Change(
            action=f"{kind}.expired", target_kind=kind, target_id=row.pk, tenant_id=row.tenant_id, after=after
        )
        write_down(change, _ACTOR)
        notify(KEYS_CHANNEL, f"key:{row.pk}")
    return len(due)


def note_last_use() -> int:
    """Move each API key's last use to its newest usage record; return how many keys moved.

    The ledger already knows; so no process writes on the path of a request.
    """
    now = timezone.now()
    newest = ApiKey.objects.across_tenants().aggregate(at=Max("last_used_at"))["at"] or now - _LOOK_BACK
    since = max(min(newest, now) - _LATENESS, now - _LOOK_BACK)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE tenants_apikey SET last_used_at = used.at FROM ("
            " SELECT tenant_id, key_id, max(finished_at) AS at FROM tenants_usagerecord"
            " WHERE recorded_at >= %s GROUP BY tenant_id, key_id) AS used"
            " WHERE tenants_apikey.id = used.key_id AND tenants_apikey.tenant_id = used.tenant_id"
            " AND (last_used_at IS NULL OR last_used_at < used.at)",
            [since],
        )
        return int(cursor.rowcount)


def sweep_outbox() -> int:
    """Delete outbox rows older than `OUTBOX_DAYS`; return how many."""
    old = timezone.now() - timedelta(days=OUTBOX_DAYS)
    return OutboxEvent.objects.across_tenants().filter(created_at__lt=old).delete()[0]


def sweep_acks() -> int:
    """Delete acks older than `ACK_DAYS` of versions that their worker has left behind; return how many."""
    old = timezone.now() - timedelta(days=ACK_DAYS)
    stale = PolicyAck.objects.filter(applied_at__lt=old, version__lt=F("worker__applied_version"))
    return stale.delete()[0]


def sweep_versions() -> int:
    """Delete versions that nobody can go back to any more: tenants' older than `POLICY_DAYS`, others than `ACK_DAYS`.

    What is in force stays however old it is. Return how many.
    """
    now = timezone.now()
    keep = timedelta(days=POLICY_DAYS)
    old = Q(created_at__lt=now - keep) | Q(created_at__lt=now - timedelta(days=ACK_DAYS), policy__isnull=True)
    swept = PolicyVersion.objects.across_tenants().filter(old)
    in_force = (Policy.objects.across_tenants().values("version"), ShareGroup.objects.values("version"))
    return swept.exclude(version__in=in_force[0]).exclude(version__in=in_force[1]).delete()[0]
