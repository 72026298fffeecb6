"""The fail-closed manager: a query of tenant data that names no tenant raises.

    ApiKey.objects.for_tenant(tenant_id).filter(...)    what nearly all code writes
    ApiKey.objects.across_tenants().filter(...)         operators and system jobs, on purpose and easy to grep for
    ApiKey.objects.filter(...), .all(), .get(...)       raise NoTenantScope

Django's internals (a forward foreign key, `save`, `refresh_from_db`, cascades) go through `_base_manager`, a plain
manager: they start from a row that was already reached. Reverse accessors are switched off (`related_name="+"`), so
there is no side door. The admin names `across_tenants` itself (`tenants/admin.py`);
`dumpdata` needs `--all`, which takes the base manager.

`GroupManager` is the same for what belongs to a share group: `.for_group(name)`, `.across_groups()`.
"""

import uuid
from typing import Any, NoReturn, Self, TypeVar

from django.db import models

from tenants.errors import NoTenantScope

M = TypeVar("M", bound=models.Model)


class TenantQuerySet(models.QuerySet[M]):
    """A queryset that knows its tenant, so that what it creates belongs to that tenant."""

    tenant_id: uuid.UUID | None = None

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]  # Django's own hook, absent from the stubs
        clone.tenant_id = self.tenant_id
        return clone

    def create(self, **kwargs: Any) -> M:
        """Create a row of the scope's tenant."""
        if self.tenant_id is not None:
            kwargs["tenant_id"] = self.tenant_id
        return super().create(**kwargs)


class TenantManager(models.Manager[M]):
    """Gives out querysets of one tenant, or of all when that is said aloud."""

    def get_queryset(self) -> NoReturn:
        """Refuse: every query method of a manager starts here."""
        raise NoTenantScope(
            f"{self.model.__name__}.objects was queried without a tenant: "
            "write .for_tenant(tenant_id), or .across_tenants() where an operator or a system job means all"
        )

    def for_tenant(self, tenant_id: uuid.UUID | str) -> TenantQuerySet[M]:
        """Return the rows of one tenant.

        Raises:
            NoTenantScope: `tenant_id` is not the id of a tenant (None, empty, malformed).
        """
        try:
            scope = tenant_id if isinstance(tenant_id, uuid.UUID) else uuid.UUID(tenant_id)
        except (ValueError, TypeError, AttributeError) as error:
            raise NoTenantScope(f"{tenant_id!r} is not a tenant id") from error
        queryset = self.across_tenants().filter(tenant_id=scope)
        queryset.tenant_id = scope
        return queryset

    def across_tenants(self) -> TenantQuerySet[M]:
        """Return the rows of every tenant."""
        return TenantQuerySet[M](model=self.model, using=self._db)


class GroupManager(models.Manager[M]):
    """Gives out querysets of one share group, or of all when that is said aloud."""

    def get_queryset(self) -> NoReturn:
        """Refuse: every query method of a manager starts here."""
        raise NoTenantScope(
            f"{self.model.__name__}.objects was queried without a share group: "
            "write .for_group(name), or .across_groups() where the system means all"
        )

    def for_group(self, name: str | models.OuterRef) -> models.QuerySet[M]:
        """Return the rows of one group.

        Raises:
            NoTenantScope: `name` is not the name of a group (None, empty).
        """
        if not name or not isinstance(name, str | models.OuterRef):
            raise NoTenantScope(f"{name!r} is not the name of a share group")
        return self.across_groups().filter(group=name)

    def across_groups(self) -> models.QuerySet[M]:
        """Return the rows of every group."""
        return models.QuerySet[M](model=self.model, using=self._db)
