"""What a key's options may be."""

import ipaddress
from datetime import UTC, datetime

from tenants.contracts import API_KEY_SCOPES, KeyOptions
from tenants.errors import Invalid
from tenants.rules import values
from tenants.rules.policy import MOST_COUNT

MOST_ENTRIES = 100
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def checked_options(options: KeyOptions, now: datetime) -> KeyOptions:
    """Return `options` in their normal form.

    Raises:
        Invalid: names the field and the fix.
    """
    moment(options.expires_at, now)
    return KeyOptions(
        project_id=options.project_id,
        scopes=scopes(options.scopes, API_KEY_SCOPES),
        models=tuple(values.text("models", name, longest=200) for name in _few("models", options.models)),
        expires_at=options.expires_at,
        ip_ranges=networks(options.ip_ranges),
        rpm=values.whole("rpm", options.rpm, low=0, high=MOST_COUNT),
        tpm=values.whole("tpm", options.tpm, low=0, high=MOST_COUNT),
    )


def scopes(wanted: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the wanted scopes in the order of `known`, at least one."""
    unknown = [scope for scope in wanted if scope not in known]
    if unknown or not wanted:
        raise Invalid("scopes", f"scopes must be one or more of {', '.join(known)}")
    return tuple(scope for scope in known if scope in wanted)


def networks(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """Return addresses and CIDR ranges in their normal form: host bits cleared."""
    normal: list[str] = []
    for text in _few("ip_ranges", ranges):
        try:
            normal.append(str(ipaddress.ip_network(text.strip(), strict=False)))
        except ValueError as error:
            raise Invalid("ip_ranges", f"ip_ranges: {text[:64]!r} is neither an address nor a CIDR range") from error
    return tuple(dict.fromkeys(normal))


def moment(unix_seconds: float, now: datetime) -> datetime | None:
    """Return an expiry as a time, None for never (0); it must lie ahead."""
    if not unix_seconds:
        return None
    if not now.timestamp() < unix_seconds < LATEST.timestamp():
        raise Invalid("expires_at", "expires_at must lie in the future")
    return datetime.fromtimestamp(unix_seconds, UTC)


def _few(field: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    if len(entries) > MOST_ENTRIES:
        raise Invalid(field, f"{field} takes at most {MOST_ENTRIES} entries")
    return entries
