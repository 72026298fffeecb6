"""The tables of the domain, one noun a file. Tenant data is reached through `TenantManager` alone, see `scope.py`."""

from tenants.models.audit import AuditEvent
from tenants.models.boost import Boost
from tenants.models.grant_share import GrantShare
from tenants.models.key import ApiKey, ManagementKey
from tenants.models.member import Membership
from tenants.models.outbox import OutboxEvent
from tenants.models.policy import Policy, PolicyCounter, PolicyVersion
from tenants.models.project import Project
from tenants.models.response import StoredResponse
from tenants.models.scope import GroupManager, TenantManager, TenantQuerySet
from tenants.models.series import InterferenceSample, PressureSample, SeriesMark, TenantSample
from tenants.models.session import LateErasure, SessionErasure
from tenants.models.share_group import SharedPrefix, ShareGroup
from tenants.models.tenant import Tenant
from tenants.models.usage import UsageRecord
from tenants.models.user import User
from tenants.models.worker import AbsentWorker, PolicyAck, Worker

__all__ = [
    "AbsentWorker",
    "ApiKey",
    "AuditEvent",
    "Boost",
    "GrantShare",
    "GroupManager",
    "InterferenceSample",
    "LateErasure",
    "ManagementKey",
    "Membership",
    "OutboxEvent",
    "Policy",
    "PolicyAck",
    "PolicyCounter",
    "PolicyVersion",
    "PressureSample",
    "Project",
    "SeriesMark",
    "SessionErasure",
    "ShareGroup",
    "SharedPrefix",
    "StoredResponse",
    "Tenant",
    "TenantManager",
    "TenantQuerySet",
    "TenantSample",
    "UsageRecord",
    "User",
    "Worker",
]
