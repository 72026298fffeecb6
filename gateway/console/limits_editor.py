"""An editor of limits: change them, see the effect before and the acks after; two operators never overwrite each other.

The base of both editors, a tenant's policy and a share group's limits.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gateway.console.limits_form import L, LimitsForm, guarantees
from tenants import selectors
from tenants.console.access import actor
from tenants.console.readings import Readings, Use, readings
from tenants.contracts import Actor
from tenants.errors import Invalid, StaleVersion
from tenants.models import User

NO_POOL_TOP = 16 << 30  # where sliders end while no worker is up
TELL_SAVED = '{"limits:saved": {"target": "body"}}'  # header HX-Trigger: other parts of the page fetch themselves anew


class LimitsEditor(ABC, Generic[L]):
    """One owner's limits as an operator edits them. Templates read it as `editor`."""

    template: ClassVar[str]  # it extends limits/editor.html
    noun: ClassVar[str]  # what is edited, in a sentence
    is_page: ClassVar[bool] = False  # the editor is all of its page: there its button stays in reach on a small screen

    name: str  # of the owner
    page_url: str
    effect_url: str
    acks_url: str  # the version and a slash are added
    current: L  # what is in force
    version: int
    feed_key: str  # what the live feed calls the owner
    colour: int | None = None  # of a tenant
    is_shared: bool = False  # the memory is a share group's

    @abstractmethod
    def form(self, data: Mapping[str, Any] | None = None) -> LimitsForm[L]:
        """Return the form, as `data` has it or as it is before anything is changed."""

    @abstractmethod
    def use(self, now: Readings) -> Use:
        """Return what the owner uses."""

    @abstractmethod
    def save(self, changes: dict[str, Any], by: Actor, *, overcommit: bool) -> Self:
        """Change the limits if they are still at `version`; return an editor of what was saved.

        Raises Invalid or StaleVersion.
        """

    @abstractmethod
    def reread(self) -> Self:
        """Return an editor of what is in force now."""

    def use_bytes(self) -> int:
        """Return the device KV that the owner uses now."""
        return self.use(readings()).kv_bytes

    def promised(self) -> int:
        """Return the owner's part of all guarantees as they are in force."""
        return self.current.kv_soft_bytes

    def answer(self, request: HttpRequest, operator: User) -> HttpResponse:
        """Save what was posted, if nobody else changed anything since it was read, and return the editor anew."""
        form = self.form(request.POST)
        if not form.is_valid():
            return self._page(request, form, status=422)
        if form.cleaned_data["base"] != self.current:
            return self._conflict(request, form)
        changes = form.changes(self.current)
        if not changes:
            return self._page(request, self.form())
        try:
            saved = self.save(changes, actor(operator), overcommit=form.cleaned_data["overcommit"])
        except Invalid as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
            return self._page(request, form, status=422)
        except StaleVersion:
            return self._conflict(request, form)
        return saved.saved(request)

    def saved(self, request: HttpRequest) -> HttpResponse:
        """Return the editor of what has just been saved, with its acks; the page's other parts hear of it."""
        answer = self._page(request, self.form(), acks=selectors.policy_acks(self.version))
        answer["HX-Trigger"] = TELL_SAVED
        return answer

    def effect(self, request: HttpRequest) -> HttpResponse:
        """Return what the posted values would do, without doing it."""
        return render(request, "limits/effect.html", self.shown(self.form(request.POST)))

    def shown(self, form: LimitsForm[L]) -> dict[str, Any]:
        """Return what the editor and its effect show."""
        now = readings()
        use = self.use(now)
        changes: dict[str, Any] = form.changes(self.current) if form.is_valid() else {}
        after = msgspec.structs.replace(self.current, **changes)  # type: ignore[type-var]  # limits are Structs
        sums = guarantees(before=self.promised(), after=after.kv_soft_bytes)
        allowed = sums.fits or bool(form.is_bound and form.cleaned_data.get("overcommit"))
        return {
            "editor": self,
            "form": form,
            "use": use,
            "readings": now,
            "after": after,
            "changes": form.told(self.current, after, use.kv_bytes),
            "action": "Mend the values first" if form.errors else form.action(changes, self.current),
            "guarantees": sums,
            "is_ready": bool(changes) and allowed,
            "slider_top": max(sums.pool or NO_POOL_TOP, self.current.kv_hard_bytes, after.kv_hard_bytes),
            "acks_url": self.acks_url,
        }

    def _page(self, request: HttpRequest, form: LimitsForm[L], status: int = 200, **more: Any) -> HttpResponse:
        return render(request, self.template, self.shown(form) | more, status=status)

    def _conflict(self, request: HttpRequest, form: LimitsForm[L]) -> HttpResponse:
        """Say what somebody else changed meanwhile, and put the operator's own changes on top of it, unsaved."""
        fresh, base = self.reread(), form.cleaned_data["base"]
        theirs = form.told(base, fresh.current)
        mine = fresh.form(form.rebased(fresh.current))
        return fresh._page(request, mine, status=409, is_conflict=True, theirs=theirs)
