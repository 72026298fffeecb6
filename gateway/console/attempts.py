"""Failed sign-ins, counted in the cache, so that a password cannot be guessed by trying."""

import hashlib
from dataclasses import dataclass

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How many failures `window_seconds` may hold before the next try is refused."""

    most: int
    window_seconds: int


# One person from one address mistypes a few times; an office behind one address more often. The bound on the e-mail
# alone is wide: it slows many addresses that share one target, and a narrow one would let anybody lock anybody out.
PAIR = Bound(most=5, window_seconds=300)
ADDRESS = Bound(most=50, window_seconds=300)
EMAIL = Bound(most=100, window_seconds=900)


def seconds_to_wait(email: str, address: str) -> int:
    """Return how long this e-mail must wait before it may try from this address; 0: not at all."""
    try:
        waits = [bound.window_seconds for key, bound in _counters(email, address) if cache.get(key, 0) >= bound.most]
    except RedisError as error:
        # without the counter, sign-in goes on: an operator must get in while Redis is down, and Argon2 slows guessing
        log.warning("sign_in_attempts_uncounted", reason=type(error).__name__)
        return 0
    return max(waits, default=0)


def note_failure(email: str, address: str) -> None:
    """Count one failed try."""
    try:
        for key, bound in _counters(email, address):
            cache.add(key, 0, bound.window_seconds)
            cache.incr(key)
    except (RedisError, ValueError) as error:  # ValueError: the window ended between the two calls
        log.warning("sign_in_attempts_uncounted", reason=type(error).__name__)


def forget(email: str, address: str) -> None:
    """Forget the failures of one who then got it right, from here."""
    try:
        cache.delete(_counters(email, address)[0][0])
    except RedisError as error:
        log.warning("sign_in_attempts_uncounted", reason=type(error).__name__)


def _counters(email: str, address: str) -> list[tuple[str, Bound]]:
    """Return cache keys and bounds. Keys are digests: an e-mail may hold what a cache key may not."""
    named = (("pair", f"{email}\n{address}", PAIR), ("address", address, ADDRESS), ("email", email, EMAIL))
    return [(f"sign-in:{kind}:{hashlib.sha256(text.encode()).hexdigest()}", bound) for kind, text, bound in named]
