"""The registered prefixes of a share group as a page lists them: an operator's page and a member tenant's alike.

    desk = Desk(group="support", page_url="/t/acme/prefixes/", tenant_id="…", may_write=True, …)

Each view below takes the desk that it works at; whose page it is, and who may be there, the callers have checked.
"""

from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from tenants import selectors
from tenants.console.prefix_form import PrefixForm
from tenants.console.readings import prefix_readings
from tenants.contracts import Actor, SharedPrefixView, TenantView
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.reports import PrefixReading
from tenants.rules.prefixes import MOST_PREFIXES
from tenants.services import prefixes as service


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where a group's prefixes are listed, for whom, and what they may do there."""

    group: str
    page_url: str
    url: str  # of the list's parts; the routes below it are the same on both pages
    acks_url: str  # of the group's versions: a version and a slash follow
    tenant_id: str = ""  # the tenant whose page it is; empty: an operator's
    may_write: bool = False
    actor: Actor

    @property
    def most(self) -> int:
        """How many prefixes a group may have."""
        return MOST_PREFIXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a prefix is to one model; no reading: it has not reached a worker of that model yet."""

    model: str
    reading: PrefixReading | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prefix on the page."""

    prefix: SharedPrefixView  # without its contents, unless they were asked for
    shared: tuple[Shared, ...]
    url: str
    registrant: TenantView | None  # the tenant that registered it, where the reader may know which
    by: str  # in words, where there is no tenant to be shown
    may_remove: bool

    @property
    def is_pending(self) -> bool:
        """Whether some model has yet to say what it is to it."""
        return any(one.reading is None for one in self.shared)


def rows(desk: Desk) -> list[Row]:
    """Return a row for every prefix of the desk's group, by name."""
    readings = prefix_readings()
    models = selectors.served_models()
    tenants = {tenant.id: tenant for tenant in selectors.tenants()}
    return [_row(desk, prefix, readings.get(prefix.id, ()), models, tenants) for prefix in _prefixes(desk)]


def listed(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Return the list anew."""
    return render(request, "prefixes/list.html", {"desk": desk, "rows": rows(desk)})


def one(request: HttpRequest, desk: Desk, prefix_id: str) -> HttpResponse:
    """Return one prefix: with `?text` its contents too, with `?remove` the question whether to remove it."""
    row = _one(desk, prefix_id)
    asks = "remove" in request.GET and row.may_remove
    contents = selectors.shared_prefix(prefix_id) if "text" in request.GET and not asks else None
    shown = {"desk": desk, "row": row, "asks": asks, "contents": contents, "is_kept": "kept" in request.GET}
    return render(request, "prefixes/row.html", shown)


def new(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Return the form of a new prefix; on POST register it, and follow it to the workers."""
    if not desk.may_write:
        raise PermissionDenied
    if request.method != "POST":
        return render(request, "prefixes/form.html", {"desk": desk, "form": PrefixForm()})
    form = PrefixForm(request.POST)
    if form.is_valid():
        try:
            made = service.register_prefix(
                group=desk.group,
                name=form.cleaned_data["name"],
                tenant_id=desk.tenant_id,
                actor=desk.actor,
                **form.contents(),
            )
        except Invalid as error:
            form.show(error)
        except Conflict as error:
            form.add_error(None, f"{error.message[:1].upper()}{error.message[1:]}.")
        except NotFound as error:
            raise Http404 from error
        else:
            shown = {"desk": desk, "prefix": made, "acks": selectors.policy_acks(made.version), "rows": rows(desk)}
            return render(request, "prefixes/registered.html", shown)
    return render(request, "prefixes/form.html", {"desk": desk, "form": form}, status=422)


def remove(request: HttpRequest, desk: Desk, prefix_id: str) -> HttpResponse:
    """Remove a prefix; what stands in its place follows that to the workers."""
    row = _one(desk, prefix_id)
    if not row.may_remove:
        raise PermissionDenied
    try:
        service.remove_prefix(group=desk.group, prefix_id=prefix_id, tenant_id=desk.tenant_id, actor=desk.actor)
    except NotFound as error:
        raise Http404 from error
    except (Forbidden, Conflict) as error:  # the tenant has just left the group
        raise PermissionDenied from error
    group = selectors.share_group(desk.group)
    shown = {
        "desk": desk,
        "row": row,
        "acks": selectors.policy_acks(group.version) if group is not None else None,
        "count": group.num_prefixes if group is not None else 0,
    }
    return render(request, "prefixes/removed.html", shown)


def _prefixes(desk: Desk) -> tuple[SharedPrefixView, ...]:
    """Return the group's prefixes by name, without their contents: those may be 16 MiB, and a page polls."""
    groups = selectors.share_group_policies(contents=False)
    return next((group.prefixes for group in groups if group.name == desk.group), ())


def _one(desk: Desk, prefix_id: str) -> Row:
    for row in rows(desk):
        if row.prefix.id == prefix_id:
            return row
    raise Http404


def _row(
    desk: Desk,
    prefix: SharedPrefixView,
    readings: tuple[PrefixReading, ...],
    models: list[str],
    tenants: dict[str, TenantView],
) -> Row:
    by_model = {reading.model: reading for reading in readings}
    is_own = bool(desk.tenant_id) and prefix.tenant_id == desk.tenant_id
    is_named = is_own or not desk.tenant_id  # who else is in the group is the operators' to know
    return Row(
        prefix=prefix,
        shared=tuple(Shared(model=model, reading=by_model.get(model)) for model in models),
        url=f"{desk.url}{prefix.id}/",
        registrant=tenants.get(prefix.tenant_id) if is_named else None,
        by="another member" if prefix.tenant_id else "operator",
        may_remove=desk.may_write and (is_own or not desk.tenant_id),
    )
