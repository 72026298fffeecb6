"""A tenant's keys: list, create (shown once), revoke."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from tenants import selectors
from tenants.console.access import Place, tenant_page
from tenants.console.key_form import KeyForm
from tenants.contracts import ApiKeyView
from tenants.errors import Invalid, NotFound
from tenants.services import keys as service

FORM_FIELDS = {"name": "name", "models": "models", "expires_at": "expires_on"}  # the service's names, the form's names


@require_safe
@tenant_page()
def keys(request: HttpRequest, place: Place) -> HttpResponse:
    """List the tenant's keys, working ones first."""
    return render(request, "keys/page.html", {"place": place, "keys": _sorted(place)})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page("keys.write")
def new(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the form of a new key; on POST create it and show its secret, this once."""
    models = selectors.served_models()
    if request.method != "POST":
        return render(request, "keys/form.html", {"place": place, "form": KeyForm(models=models)})
    form = KeyForm(request.POST, models=models)
    if form.is_valid():
        try:
            created = service.create_api_key(
                tenant_id=place.tenant.id, name=form.cleaned_data["name"], actor=place.actor, options=form.options()
            )
        except Invalid as error:
            form.add_error(FORM_FIELDS.get(error.field, "name"), error.message)
        else:
            shown = {
                "place": place,
                "created": created,
                "keys": _sorted(place),
                "base_url": request.build_absolute_uri("/v1"),
                "model": (created.key.models or tuple(models) or ("",))[0]
                if isinstance(created.key, ApiKeyView)
                else "",
            }
            return render(request, "keys/created.html", shown)
    return render(request, "keys/form.html", {"place": place, "form": form}, status=422)


@require_safe
@tenant_page()
def row(request: HttpRequest, place: Place, key_id: str) -> HttpResponse:
    """Return one key's row; with `?revoke` it asks whether to revoke the key."""
    asks = "revoke" in request.GET and place.may_write_keys
    return render(request, "keys/row.html", {"place": place, "key": _key(place, key_id), "asks": asks})


@require_POST
@tenant_page("keys.write")
def revoke(request: HttpRequest, place: Place, key_id: str) -> HttpResponse:
    """Revoke a key and return its row."""
    _key(place, key_id)  # a management key is not revoked from this page
    try:
        revoked = service.revoke_key(key_id=key_id, tenant_id=place.tenant.id, actor=place.actor)
    except NotFound as error:
        raise Http404 from error
    return render(request, "keys/row.html", {"place": place, "key": revoked, "asks": False})


def _sorted(place: Place) -> list[ApiKeyView]:
    """Return the keys newest first, those that no longer work after those that do."""
    return sorted(selectors.api_keys(place.tenant.id), key=lambda key: key.status != "active")


def _key(place: Place, key_id: str) -> ApiKeyView:
    for key in selectors.api_keys(place.tenant.id):
        if key.id == key_id:
            return key
    raise Http404
