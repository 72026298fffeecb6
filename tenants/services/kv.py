"""Erase what is kept of a tenant: nobody finds it any more, and what is encrypted on disk cannot be read any more."""

import uuid
from collections.abc import Collection

import msgspec
from django.db import transaction

from tenants import rows
from tenants.contracts import KEYS_CHANNEL, Actor, PolicyView
from tenants.models import SessionErasure, Tenant
from tenants.models.tenant import new_secret
from tenants.services import versions
from tenants.services.journal import notify
from tenants.services.policy import Deed, locked, write
from tenants.services.sessions import begin_erasure


@transaction.atomic
def erase_kv(*, tenant_id: uuid.UUID | str, workers: Collection[str], actor: Actor) -> PolicyView:
    """Give a tenant a new KV namespace and, where its disk is encrypted, a new secret, under a new version.

    Blocks are found by their namespace: from now on no request finds one from before. `workers` are to erase the
    tenant's sessions; it is written down for each until it has.

    Raises:
        NotFound: there is no such tenant.
        Conflict: too many of the tenant's erasures wait already.
    """
    version = versions.next_version()
    row = locked(tenant_id)
    Tenant.objects.filter(pk=row.tenant_id).update(secret=new_secret())
    row.disk_seed = b""  # a new one comes with the version, if the disk is encrypted
    after = msgspec.structs.replace(rows.policy_view(row), version=version)
    begin_erasure(tenant_id=row.tenant_id, session="", workers=workers, actor=actor)
    notify(KEYS_CHANNEL, f"tenant:{row.tenant_id}")
    return write(row, after, Deed("kv.erased", actor))


@transaction.atomic
def settle_kv(*, tenant_id: uuid.UUID | str, confirmed: Collection[str]) -> None:
    """Take back the erasures of all sessions that these workers have confirmed."""
    SessionErasure.objects.for_tenant(tenant_id).filter(session="", worker_id__in=confirmed).delete()
