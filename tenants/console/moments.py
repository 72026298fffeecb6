"""Times as the console shows them."""

from datetime import datetime

from django.utils import timezone


def short(at: datetime) -> str:
    """Return a time in the words that suffice: today's by the clock, this year's by day, others with the year (UTC)."""
    now = timezone.now()
    if at.date() == now.date():
        return f"today {at:%H:%M}"
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at.day} {at:%b %Y}"
