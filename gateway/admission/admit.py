"""Admit a request against the rates of its tenant and of its key, and settle it when its usage is known."""

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.admission.leases import Leases
from gateway.admission.limits import duration, wait_seconds
from gateway.admission.trials import Trial, Trials
from gateway.api.errors import Headers, RateLimited
from tenants.contracts import KeyGrant


@dataclass(frozen=True, slots=True)
class _Limit:
    scope: str
    limit: int
    unit: str  # requests or tokens
    owner: str  # whose limit it is, for the message


class Rate(NamedTuple):
    """What is left of a limit a minute."""

    unit: str  # requests or tokens
    limit: int
    remaining: int
    reset_seconds: float  # until all of it is there again


@dataclass(slots=True)
class Permit:
    """What a request holds of its limits. `settle` once: tokens that weren't used go back, more are charged."""

    leases: Leases
    limits: list[_Limit]
    reserved: dict[str, float] = field(default_factory=dict)
    settled: bool = False
    trial: Trial | None = None

    def settle(self, used_tokens: int) -> None:
        """Replace the reservation of tokens by what was used."""
        if self.settled:
            return
        self.settled = True
        if self.trial is not None:
            self.trial.settle(used_tokens)
        for limit in self.limits:
            if limit.unit == "tokens":
                self.leases.give(limit.scope, limit.limit, self.reserved.get(limit.scope, 0.0) - used_tokens)

    def rates(self, now: float) -> list[Rate]:
        """Return of each unit the limit that is nearest to its end. `now` is monotonic seconds."""
        rates = []
        for unit in ("requests", "tokens"):
            states = [(limit, self._balance(limit, now)) for limit in self.limits if limit.unit == unit]
            if states:
                limit, balance = min(states, key=lambda state: state[1] / state[0].limit)
                reset = wait_seconds(limit.limit, balance, limit.limit)
                rates.append(Rate(unit, limit.limit, int(max(0.0, balance)), reset))
        return rates

    def headers(self, now: float) -> Headers:
        """Return the rates as `x-ratelimit-*`. `now` is monotonic seconds."""
        headers: Headers = []
        for rate in self.rates(now):
            for name, text in (
                ("limit", str(rate.limit)),
                ("remaining", str(rate.remaining)),
                ("reset", duration(rate.reset_seconds)),
            ):
                headers.append((f"x-ratelimit-{name}-{rate.unit}".encode(), text.encode()))
        return headers

    def _balance(self, limit: _Limit, now: float) -> float:
        state = self.leases.state(limit.scope)
        return float(limit.limit) if state is None else state.balance(now)


class Admission:
    """Admits requests by the leased rates of this process, and counts by those on trial.

    Args:
        leases: of the rates.
        trials: counts what rates on trial would have refused; None: nothing is on trial here.
    """

    def __init__(self, leases: Leases, trials: Trials | None = None) -> None:
        self._leases = leases
        self._trials = trials

    async def admit(self, grant: KeyGrant, *, prompt_tokens: int, tokens: int, now: float) -> Permit:
        """Take one request and `tokens` (prompt and expected output) of all limits that apply, or of none.

        A reservation larger than a limit is cut to it, so that what the limit could ever allow is allowed.

        Raises:
            RateLimited: with the time to wait and the headers; for ever, if the prompt alone exceeds the limit.
        """
        permit = Permit(self._leases, _limits(grant))
        for limit in permit.limits:
            wanted = 1.0 if limit.unit == "requests" else float(min(tokens, limit.limit))
            if limit.unit == "tokens" and prompt_tokens > limit.limit:
                raise self._refuse(permit, limit, prompt_tokens, None, now)
            wait = await self._leases.take(limit.scope, limit.limit, wanted)
            if wait > 0:
                raise self._refuse(permit, limit, wanted, wait, now)
            permit.reserved[limit.scope] = wanted
        if self._trials is not None:
            permit.trial = self._trials.begin(grant, prompt_tokens=prompt_tokens, tokens=tokens)
        return permit

    def rates(self, grant: KeyGrant, now: float) -> list[Rate]:
        """Return what is left of the limits that apply, for whoever asks without a request."""
        return Permit(self._leases, _limits(grant)).rates(now)

    def _refuse(self, permit: Permit, limit: _Limit, wanted: float, wait: float | None, now: float) -> RateLimited:
        for scope, amount in permit.reserved.items():
            self._leases.give(scope, next(one.limit for one in permit.limits if one.scope == scope), amount)
        permit.settled = True
        advice = f"Try again in {duration(wait)}." if wait is not None else "It can never fit: send a shorter prompt."
        error = RateLimited(
            f"Rate limit reached for {limit.owner} on {limit.unit} per minute: limit {limit.limit}, "
            f"requested {int(wanted)}. {advice}",
            wait_seconds=wait,
        )
        error.type = limit.unit
        error.headers += permit.headers(now)
        return error


def _limits(grant: KeyGrant) -> list[_Limit]:
    tenant, key = f"tenant:{grant.tenant_id}", f"key:{grant.key_id}"
    limits = [
        _Limit(f"{tenant}:rpm", grant.policy.rpm, "requests", "the tenant"),
        _Limit(f"{tenant}:tpm", grant.policy.tpm, "tokens", "the tenant"),
    ]
    if grant.key_id:
        limits.append(_Limit(f"{key}:rpm", grant.rpm, "requests", "this API key"))
        limits.append(_Limit(f"{key}:tpm", grant.tpm, "tokens", "this API key"))
    return [limit for limit in limits if limit.limit > 0]
