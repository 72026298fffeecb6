"""A tenant's policy as operators edit it; the page's other parts start from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.forms import BoundField
from django.http import Http404
from django.urls import reverse

from gateway.console.limits_editor import LimitsEditor
from gateway.console.limits_form import LimitsForm
from gateway.console.policy_form import TRIAL, PolicyForm
from tenants import selectors
from tenants.console.readings import Readings, Use
from tenants.contracts import Actor, PolicyView, TenantView
from tenants.reports import ShadowReading
from tenants.rules.policy import SHADOW_FIELDS
from tenants.services.policy import set_policy
from tenants.trials import trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One limit that may be put on trial."""

    field: BoundField
    words: str  # what it is called
    in_force: str  # the limit's own value
    counted: ShadowReading | None  # None: it is not on trial


class PolicyEditor(LimitsEditor[PolicyView]):
    """A tenant's policy as an operator edits it."""

    template = "operator/editor.html"
    noun = "policy"
    is_page = True

    def __init__(self, tenant: TenantView, policy: PolicyView) -> None:
        self.tenant = tenant
        self.current = policy
        self.version = policy.version
        self.name = tenant.name
        self.colour = tenant.colour
        self.feed_key = f"tenant:{tenant.id}"
        self.page_url = reverse("operator-policy", args=[tenant.slug])
        self.effect_url = reverse("operator-policy-effect", args=[tenant.slug])
        self.acks_url = f"{self.page_url}acks/"

    def form(self, data: Mapping[str, Any] | None = None) -> PolicyForm:
        """Return the form, as `data` has it or as it is before anything is changed."""
        groups = [group.name for group in selectors.share_groups()]
        return PolicyForm(data, initial=PolicyForm.initial_of(self.current), groups=groups)

    def use(self, now: Readings) -> Use:
        """Return what the tenant uses."""
        return now.of(self.tenant.id)

    def save(self, changes: dict[str, Any], by: Actor, *, overcommit: bool) -> "PolicyEditor":
        """Write a new version of the policy."""
        saved = set_policy(
            tenant_id=self.tenant.id,
            expected_version=self.version,
            changes=changes,
            actor=by,
            overcommit=overcommit,
        )
        return PolicyEditor(self.tenant, saved)

    def promised(self) -> int:
        """Return the tenant's part of all guarantees: one that a boost has lowered stays promised."""
        return selectors.promised_bytes(self.tenant.id, self.current.kv_soft_bytes)

    def shown(self, form: LimitsForm[PolicyView]) -> dict[str, Any]:
        """Return what the editor shows, with what the limits on trial have counted."""
        counted = {reading.limit: reading for reading in trials(self.tenant.id, self.current)}
        rows = [
            Trial(
                field=form[TRIAL + name],
                words=f"Trial of {PolicyForm.labels[name]}",
                in_force=PolicyForm.written(name, getattr(self.current, name)),
                counted=counted.get(name),
            )
            for name in SHADOW_FIELDS
        ]
        return super().shown(form) | {
            "trials": rows,
            "num_trials": len(counted),
            "trials_open": any(row.field.errors for row in rows),
        }

    def reread(self) -> "PolicyEditor":
        """Return an editor of what is in force now."""
        return editor_of(self.tenant.slug)


def editor_of(slug: str) -> PolicyEditor:
    """Return an editor of a tenant's policy as it is in force. No such tenant: 404."""
    tenant = selectors.tenant(slug)
    current = selectors.policy(tenant.id) if tenant is not None else None
    if tenant is None or current is None:
        raise Http404
    return PolicyEditor(tenant, current)
