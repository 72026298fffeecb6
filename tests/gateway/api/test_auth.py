"""The key cache by itself: what is asked of the store, and when."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.api.auth import NEGATIVE_SECONDS, KeyCache, bearer, check, check_model
from gateway.api.errors import ApiError, Forbidden, InvalidKey, ModelNotFound, Overloaded
from gateway.reads import StoreAway
from tenants.contracts import KeyGrant, PolicyView
from tenants.keys import new_key

POLICY = PolicyView(
    version=3,
    weight=1,
    kv_soft_bytes=0,
    kv_hard_bytes=1,
    max_running=1,
    max_queued=1,
    rpm=0,
    tpm=0,
    max_context=1,
    max_output=1,
    priority="standard",
)
GRANT = KeyGrant(
    key_id="k1",
    tenant_id="t1",
    tenant_slug="t",
    project_id="p",
    namespace=b"n" * 32,
    models=(),
    expires_at=0,
    ip_ranges=(),
    rpm=0,
    tpm=0,
    policy=POLICY,
)


class Store:
    """A store that counts lookups and can be away; `gate` holds answers back."""

    def __init__(self, grant: KeyGrant | None = GRANT) -> None:
        self.grant = grant
        self.lookups = 0
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def look_up(self, _digest: str) -> KeyGrant | None:
        """Answer one lookup."""
        self.lookups += 1
        grant, away = self.grant, self.away
        await self.gate.wait()
        if away:
            raise StoreAway("away")
        return grant


def run(story: Callable[[Store, KeyCache], Coroutine[Any, Any, None]], grant: KeyGrant | None = GRANT) -> None:
    """Run a story on a fresh store and cache."""

    async def main() -> None:
        store = Store(grant)
        cache = KeyCache(store.look_up, "pepper")
        await story(store, cache)
        await cache.close()

    asyncio.run(main())


def test_known_key_asks_nobody() -> None:
    """A key is looked up once, then served from memory, also while the store is away."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        await cache.grant(raw)
        store.away = True
        for _ in range(100):
            assert await cache.grant(raw) is GRANT
        assert store.lookups == 1

    run(story)


def test_one_lookup_for_all_who_wait() -> None:
    """A hundred callers with one new key cost one lookup."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        store.gate.clear()
        callers = [asyncio.create_task(cache.grant(raw)) for _ in range(100)]
        await asyncio.sleep(0)
        store.gate.set()
        assert set(await asyncio.gather(*callers)) == {GRANT}
        assert store.lookups == 1

    run(story)


def test_caller_that_leaves_does_not_end_the_lookup() -> None:
    """One waiting caller's cancellation leaves the others waiting."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        store.gate.clear()
        first, second = (asyncio.create_task(cache.grant(raw)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        assert await second is GRANT

    run(story)


def test_unknown_key_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key isn't looked up again for some seconds, or until keys change."""
    raw = new_key("live")
    now = 100.0
    monkeypatch.setattr("gateway.api.auth.time.monotonic", lambda: now)

    async def story(store: Store, cache: KeyCache) -> None:
        nonlocal now
        for _ in range(5):
            with pytest.raises(InvalidKey):
                await cache.grant(raw)
        assert store.lookups == 1
        now += NEGATIVE_SECONDS + 1
        with pytest.raises(InvalidKey):
            await cache.grant(raw)
        assert store.lookups == 2
        store.grant = GRANT
        cache.forget("key:new")
        assert await cache.grant(raw) is GRANT

    run(story, None)


def test_malformed_keys_are_never_looked_up() -> None:
    """A wrong form, checksum or kind is refused offline."""

    async def story(store: Store, cache: KeyCache) -> None:
        for raw in ("", "x" * 10_000, new_key("live")[:-1] + "~", new_key("op"), new_key("adm"), "tg_live_é"):
            with pytest.raises(InvalidKey):
                await cache.grant(raw)
        assert store.lookups == 0

    run(story)


def test_unknown_key_while_the_store_is_away() -> None:
    """It is a 503 with a time to wait, never a 401."""

    async def story(store: Store, cache: KeyCache) -> None:
        store.away = True
        with pytest.raises(Overloaded) as caught:
            await cache.grant(new_key("live"))
        assert dict(caught.value.headers)[b"retry-after"] == b"2"

    run(story)


@pytest.mark.parametrize("payload", ["key:k1", "tenant:t1"])
def test_changed_key_is_forgotten(payload: str) -> None:
    """After a change the key is looked up again, and with the store away it is refused with 503."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        await cache.grant(raw)
        cache.forget("key:other")
        cache.forget("tenant:other")
        await cache.grant(raw)
        assert store.lookups == 1
        cache.forget(payload)
        store.away = True
        with pytest.raises(Overloaded):
            await cache.grant(raw)
        store.away, store.grant = False, None
        with pytest.raises(InvalidKey):
            await cache.grant(raw)

    run(story)


def test_doubted_key_goes_on_without_the_store() -> None:
    """After a gap in notifications a key is looked up again; with the store away it goes on."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        await cache.grant(raw)
        cache.doubt_all()
        store.away = True
        assert await cache.grant(raw) is GRANT
        store.away = False
        assert await cache.grant(raw) is GRANT
        assert store.lookups == 3
        await cache.grant(raw)
        assert store.lookups == 3

    run(story)


def test_answer_from_before_a_change_is_not_kept() -> None:
    """A revocation that is announced while its key is being looked up takes effect."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        store.gate.clear()
        caller = asyncio.create_task(cache.grant(raw))
        while not store.lookups:  # noqa: ASYNC110  # one turn of the loop, no time
            await asyncio.sleep(0)
        store.grant = None
        cache.forget("key:k1")
        store.gate.set()
        with pytest.raises(InvalidKey):
            await caller

    run(story)


def test_policy_is_swapped_in_place() -> None:
    """A newer policy reaches the grants of its tenant without a lookup; an older one doesn't."""
    raw = new_key("live")

    async def story(store: Store, cache: KeyCache) -> None:
        await cache.grant(raw)
        newer = PolicyView(
            **{name: getattr(POLICY, name) for name in POLICY.__struct_fields__} | {"version": 9, "rpm": 5}
        )
        cache.take_policies([("t1", newer), ("t2", POLICY)])
        cache.take_policies([("t1", POLICY)])
        assert (await cache.grant(raw)).policy == newer
        assert store.lookups == 1

    run(story)


def test_flood_of_new_keys_is_bounded() -> None:
    """More new keys at once than lookups may wait are refused with 503."""

    async def story(store: Store, cache: KeyCache) -> None:
        store.gate.clear()
        callers = [asyncio.create_task(cache.grant(new_key("live"))) for _ in range(200)]
        await asyncio.sleep(0)
        store.gate.set()
        answers = await asyncio.gather(*callers, return_exceptions=True)
        assert sum(isinstance(answer, Overloaded) for answer in answers) == 200 - store.lookups
        assert store.lookups < 100

    run(story)


@pytest.mark.parametrize(
    ("changes", "client", "error"),
    [
        ({"expires_at": 99.0}, "1.2.3.4", InvalidKey),
        ({"expires_at": 101.0}, "1.2.3.4", None),
        ({"scopes": ("models",)}, "1.2.3.4", Forbidden),
        ({"ip_ranges": ("1.2.3.0/24",)}, "1.2.3.4", None),
        ({"ip_ranges": ("1.2.3.0/24",)}, "::ffff:1.2.3.4", None),
        ({"ip_ranges": ("1.2.3.0/24", "2001:db8::/32")}, "2001:db8::1", None),
        ({"ip_ranges": ("1.2.3.0/24",)}, "1.2.4.4", Forbidden),
        ({"ip_ranges": ("1.2.3.0/24",)}, None, Forbidden),
        ({"ip_ranges": ("1.2.3.0/24",)}, "not an address", Forbidden),
    ],
)
def test_check(changes: dict[str, Any], client: str | None, error: type[ApiError] | None) -> None:
    """Expiry, scopes and addresses are checked at each request."""
    grant = KeyGrant(**{name: getattr(GRANT, name) for name in GRANT.__struct_fields__} | changes)
    if error is None:
        check(grant, scope="generate", client=client, now=100.0)
    else:
        with pytest.raises(error):
            check(grant, scope="generate", client=client, now=100.0)


def test_check_model() -> None:
    """A key with a list of models sees only these."""
    grant = KeyGrant(**{name: getattr(GRANT, name) for name in GRANT.__struct_fields__} | {"models": ("a",)})
    check_model(grant, "a")
    with pytest.raises(ModelNotFound):
        check_model(grant, "b")


def test_bearer() -> None:
    """The scheme is read in any case, other schemes are none."""
    assert bearer([(b"x", b"y"), (b"authorization", b"bEaReR  abc ")]) == "abc"
    for headers in ([], [(b"authorization", b"Basic abc")], [(b"authorization", b"Bearer")]):
        with pytest.raises(InvalidKey):
            bearer(headers)
