"""Admit a request against the rates of its tenant and of its key, and settle it when its usage is known."""

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.admission.leases import Leases
from gateway.admission.limits import duration, wait_seconds
from gateway.admission.trials import Trial, Trials
from gateway.api.errors import Headers, RateLimited
from tenants.contracts import KeyGrant

_TENANT, _KEY = "the tenant", "this API key"


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
        await self._take(permit, prompt_tokens, tokens, now)
        if self._trials is not None:
            permit.trial = self._trials.begin(grant, prompt_tokens=prompt_tokens, tokens=tokens)
        return permit

    async def admit_call(self, grant: KeyGrant, *, now: float, apart: bool) -> Permit:
        """Take one request of the limits on requests, and nothing of those on tokens.

        Args:
            grant: the caller's.
            now: monotonic seconds.
            apart: of buckets of their own, as large as the limits are: calls that prepare a request take none from it.

        Raises:
            RateLimited: with the time to wait and the headers.
        """
        permit = Permit(self._leases, _request_limits(grant, ":apart" if apart else ""))
        await self._take(permit, 0, 0, now)
        if self._trials is not None and not apart:
            permit.trial = self._trials.begin(grant, prompt_tokens=0, tokens=0)
        return permit

    async def check(self, grant: KeyGrant, *, now: float) -> None:
        """Take nothing, and refuse what a limit on requests would refuse, before anything is done for it.

        Raises:
            RateLimited: with the time to wait and the headers.
        """
        permit = Permit(self._leases, _request_limits(grant))
        await self._take(permit, 0, 0, now)
        self._give_back(permit)

    def rates(self, grant: KeyGrant, now: float) -> list[Rate]:
        """Return what is left of the limits that apply, for whoever asks without a request."""
        return Permit(self._leases, _limits(grant)).rates(now)

    async def _take(self, permit: Permit, prompt_tokens: int, tokens: int, now: float) -> None:
        """Take of all the permit's limits, or of none."""
        for limit in permit.limits:
            wanted = 1.0 if limit.unit == "requests" else float(min(tokens, limit.limit))
            if limit.unit == "tokens" and prompt_tokens > limit.limit:
                raise self._refuse(permit, limit, prompt_tokens, None, now)
            wait = await self._leases.take(limit.scope, limit.limit, wanted)
            if wait > 0:
                raise self._refuse(permit, limit, wanted, wait, now)
            permit.reserved[limit.scope] = wanted

    def _give_back(self, permit: Permit) -> None:
        for limit in permit.limits:
            if limit.scope in permit.reserved:
                self._leases.give(limit.scope, limit.limit, permit.reserved[limit.scope])
        permit.settled = True

    def _refuse(self, permit: Permit, limit: _Limit, wanted: float, wait: float | None, now: float) -> RateLimited:
        self._give_back(permit)
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
    limits = [*_request_limits(grant), _Limit(f"tenant:{grant.tenant_id}:tpm", grant.policy.tpm, "tokens", _TENANT)]
    if grant.key_id:
        limits.append(_Limit(f"key:{grant.key_id}:tpm", grant.tpm, "tokens", _KEY))
    return [limit for limit in limits if limit.limit > 0]


def _request_limits(grant: KeyGrant, bucket: str = "") -> list[_Limit]:
    limits = [_Limit(f"tenant:{grant.tenant_id}:rpm{bucket}", grant.policy.rpm, "requests", _TENANT)]
    if grant.key_id:
        limits.append(_Limit(f"key:{grant.key_id}:rpm{bucket}", grant.rpm, "requests", _KEY))
    return [limit for limit in limits if limit.limit > 0]
