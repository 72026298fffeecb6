"""Template tags of the instrument: figures, limit bars, fields, navigation."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django import template
from django.forms import BoundField
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tenants.console import figures, moments, navigation
from tenants.console.acks_line import AcksLine, acks_line
from tenants.console.figures import Figure
from tenants.console.limit import limit_parts
from tenants.contracts import PolicyAcks

register = template.Library()

_KINDS: Mapping[str, Callable[..., Figure]] = {
    "bytes": figures.size,
    "count": figures.count,
    "rate": figures.rate,
    "duration": figures.duration,
}
NO_READING = Figure("–", "", "no reading")
THEMES = ("light", "dark")


@register.simple_tag
def figure(kind: str, amount: float, unit: str | None = None, field: str = "", known: object = True) -> SafeString:
    """Return a figure: value, quiet unit, exact value as title.

    `field` names it to the live feed; where nothing is `known`, a dash stands for the number.
    """
    shown = _KINDS[kind](amount) if unit is None else _KINDS[kind](amount, unit)
    shown = shown if known else NO_READING
    name = format_html(' data-field="{}"', field) if field else ""
    mark = format_html('<span class="unit">{}</span>', shown.unit) if shown.unit else ""
    return format_html('<span class="figure" title="{}"{}>{}{}</span>', shown.exact, name, shown.value, mark)


@register.inclusion_tag("parts/limit.html")
def limit_bar(use: int, soft: int, hard: int, **options: Any) -> dict[str, Any]:
    """Draw a limit. Options: `cached` (of the use, what no request holds), `colour` of the tenant or `is_shared` for a
    share group, `field` (its name to the live feed), `was_hard` (a ghost).

    A `soft` of -1 is none: where nothing can be borrowed, as with a sum, all of the use is plain.
    """
    soft, has_soft = (hard, False) if soft < 0 else (soft, soft > 0)
    was_hard = options.get("was_hard") or hard
    cached = options.pop("cached", 0)
    parts = limit_parts(use, soft, hard, cached=cached, span=was_hard)
    return {
        "parts": parts,
        "words": _words(use, cached, soft if has_soft else 0, hard),
        "ghost": None if was_hard == hard else round(was_hard / max(use, hard, was_hard) * 100, 2),
        "has_soft": has_soft,
        "over_from": round(parts.used + parts.borrowed, 2),
        **options,
    }


def _words(use: int, cached: int, soft: int, hard: int) -> str:
    """Say what a bar shows, for its tooltip and for those who do not see it; the live feed says the same."""
    part = f", of it {figures.size(cached)} only cached" if cached else ""
    return f"uses {figures.size(use)}{part}, soft limit {figures.size(soft)}, hard limit {figures.size(hard)}"


@register.inclusion_tag("parts/field.html")
def field(bound: BoundField, label: str = "", label_hidden: bool = False) -> dict[str, Any]:
    """Draw a form's field with label, hint and errors."""
    is_joined = getattr(bound.field, "is_joined", False)
    return {
        "field": bound,
        "label": label or bound.label,
        "label_for": f"{bound.auto_id}_0" if is_joined else bound.id_for_label,  # the number, of number and unit
        "label_hidden": label_hidden,
        "is_joined": is_joined,
    }


@register.inclusion_tag("parts/slider.html")
def slider(bound: BoundField, part: str, colour: int | None = None) -> dict[str, Any]:
    """Draw a field of bytes with a slider below it, which the page's script binds to it and shows."""
    return field(bound) | {"part": part, "colour": colour}


@register.simple_tag
def percent(amount: float | None) -> SafeString:
    """Return a share in per cent with one decimal below 10; a dash where there is none."""
    if amount is None:
        return _drawn(NO_READING)
    return _drawn(Figure(f"{amount:.1f}" if amount < 9.95 else f"{amount:.0f}", "%", f"{amount:.3f} %"))


@register.simple_tag
def seconds(amount: float) -> SafeString:
    """Return a length of time in the unit that keeps two or three digits."""
    return _drawn(figures.duration(amount * 1000))


@register.simple_tag
def part(amount: float, name: str, known: object = True) -> SafeString:
    """Return a number from 0 to 1 with two decimals, named `name` to the live feed."""
    shown = Figure(f"{amount:.2f}", "", f"{amount:.4f}") if known else NO_READING
    return format_html('<span class="figure" title="{}" data-field="{}">{}</span>', shown.exact, name, shown.value)


def _drawn(shown: Figure) -> SafeString:
    mark = format_html('<span class="unit">{}</span>', shown.unit) if shown.unit else ""
    return format_html('<span class="figure" title="{}">{}{}</span>', shown.exact, shown.value, mark)


@register.simple_tag
def line_of(acks: PolicyAcks) -> AcksLine:
    """Return how far a version has come, as its line shows it."""
    return acks_line(acks)


@register.simple_tag
def moment(at: datetime | None, otherwise: str = "") -> SafeString | str:
    """Return a time as a date that reads well, with the exact time as title; `otherwise` where there is none."""
    if at is None:
        return otherwise
    exact = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact, moments.short(at))


@register.simple_tag(takes_context=True)
def theme(context: Mapping[str, Any]) -> str:
    """Return the theme that the reader chose, or `auto`."""
    request = context.get("request")
    chosen = request.COOKIES.get("theme", "") if request is not None else ""
    return chosen if chosen in THEMES else "auto"


@register.simple_tag(takes_context=True)
def masthead(context: Mapping[str, Any]) -> navigation.Masthead:
    """Return what the head of the page offers to this reader."""
    return navigation.masthead(context["request"], context.get("place"))
