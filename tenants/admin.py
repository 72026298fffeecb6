"""Django's admin shows the tables and changes none of them: services write, so that a change leaves an audit row."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from tenants.models import (
    ApiKey,
    AuditEvent,
    Boost,
    GroupManager,
    ManagementKey,
    Membership,
    OutboxEvent,
    Policy,
    PolicyAck,
    Project,
    SharedPrefix,
    ShareGroup,
    Tenant,
    TenantManager,
    UsageRecord,
    User,
    Worker,
)

SECRET_FIELDS = ("secret", "digest", "password")


if TYPE_CHECKING:  # generic for the type checker alone
    _Base = admin.ModelAdmin[Model]
else:
    _Base = admin.ModelAdmin


class ReadOnly(_Base):
    """Shows rows to operators."""

    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Return every row: an operator stands above tenants."""
        manager = self.model._default_manager
        if isinstance(manager, TenantManager):
            return manager.across_tenants()
        return manager.across_groups() if isinstance(manager, GroupManager) else manager.get_queryset()

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        """Return all columns but the secret ones."""
        return [field.name for field in self.model._meta.fields if field.name not in SECRET_FIELDS]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        """Return the same: nothing here is a form."""
        return self.get_fields(request, obj)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the app to operators."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let operators look."""
        return bool(request.user.is_active and getattr(request.user, "is_staff", False))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody change."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody delete."""
        return False


def _columns(*names: str) -> type[ReadOnly]:
    return type("Shown", (ReadOnly,), {"list_display": names, "show_full_result_count": False, "list_per_page": 50})


admin.site.register(Tenant, _columns("slug", "name", "status", "time_zone", "created_at"))
admin.site.register(User, _columns("email", "name", "is_staff", "is_active", "last_login"))
admin.site.register(Project, _columns("name", "tenant", "created_at"))
admin.site.register(Membership, _columns("tenant", "user", "role"))
admin.site.register(ApiKey, _columns("id", "name", "tenant", "expires_at", "revoked_at", "last_used_at"))
admin.site.register(ManagementKey, _columns("id", "name", "role", "tenant", "expires_at", "revoked_at"))
admin.site.register(Policy, _columns("tenant", "version", "weight", "kv_soft_bytes", "kv_hard_bytes", "updated_at"))
admin.site.register(Boost, _columns("id", "tenant", "reason", "started_at", "ends_at", "ended_at"))
admin.site.register(ShareGroup, _columns("name", "version", "kv_soft_bytes", "kv_hard_bytes", "removed", "created_at"))
admin.site.register(SharedPrefix, _columns("name", "group", "registered_by", "num_bytes", "created_at"))
admin.site.register(Worker, _columns("id", "model", "address", "last_seen_at", "applied_version"))
admin.site.register(PolicyAck, _columns("worker", "version", "applied_at"))
admin.site.register(UsageRecord, _columns("request_id", "tenant_id", "model", "completion_tokens", "finished_at"))
admin.site.register(AuditEvent, _columns("at", "actor_label", "action", "target_kind", "target_id", "tenant"))
admin.site.register(OutboxEvent, _columns("id", "topic", "tenant", "created_at"))
