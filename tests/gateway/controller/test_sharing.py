"""Share groups reach the workers with their prefixes in each worker's own tokens, and hold up nobody's policy."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.conf import settings

from engine.protocol import engine_pb2 as pb
from gateway.controller import sharing
from gateway.controller.leadership import POLL_SECONDS
from tenants.contracts import SharedPrefixView, ShareGroupView
from tenants.reports import PREFIXES_KEY, PrefixReading
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix, remove_prefix
from tenants.services.share_groups import create_share_group, remove_share_group, update_share_group
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tokenizer
from tests.gateway.controller.conftest import SYSTEM, controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import ScriptedWorker, scripted_worker
from tests.gateway.controller.test_policy_push import MIB, all_applied, join

PROMPT = "You are the keeper of the tenant's blocks, and the block holds the tokens. " * 3
TOKENIZER = make_tokenizer().to_str().encode()


def describe(worker: ScriptedWorker, **changes: Any) -> None:
    """Give a worker the card of a tiny model."""
    fields = {
        "worker_id": worker.worker_id,
        "model": "tiny",
        "digest": "d" * 64,
        "tokenizer_json": TOKENIZER,
        "chat_template": CHAT_TEMPLATE,
        "vocab_size": 384,
        "max_context_tokens": 2048,
        "block_size": 16,
    }
    worker.card = pb.ModelCard(**(fields | changes))


def make_group(name: str = "house", hard: int = 8 * MIB) -> ShareGroupView:
    """Create a share group."""
    return create_share_group(name=name, description="", kv_soft_bytes=hard // 2, kv_hard_bytes=hard, actor=SYSTEM)


def register(name: str = "prompt", group: str = "house", text: str = PROMPT, role: str = "system") -> SharedPrefixView:
    """Register a conversation of one message."""
    return register_prefix(group=group, name=name, messages=[{"role": role, "content": text}], actor=SYSTEM)


def readings(worker_id: str) -> dict[str, PrefixReading]:
    """Return what pages read of a worker's prefixes, by prefix."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        raw = client.get(PREFIXES_KEY.format(worker_id=worker_id))
    found = msgspec.json.decode(raw, type=list[PrefixReading]) if raw else []
    return {reading.prefix_id: reading for reading in found}


def prefixes(worker: ScriptedWorker, group: str = "house") -> list[str]:
    """Return the ids of the prefixes that a worker has."""
    return [prefix.id for prefix in worker.groups[group].prefixes] if group in worker.groups else []


@pytest.fixture
def group(transactional_db: None) -> ShareGroupView:
    """A share group of 8 MiB without prefixes."""
    return make_group()


def test_a_group_is_pushed_with_its_namespace_and_its_prefixes_in_tokens(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """Limits and membership come with the version, tokens as soon as they are made; the reading says how many."""

    async def story() -> None:
        async with scripted_worker("grouped", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            change = {"share_group": "house"}
            policy = await in_thread(
                lambda: set_policy(tenant_id=tenant, expected_version=1, changes=change, actor=SYSTEM)
            )
            await until_stored(lambda: all_applied(policy.version))
            assert list(worker.grants[tenant].share_groups) == ["house"]
            assert (worker.groups["house"].kv_soft_bytes, worker.groups["house"].kv_hard_bytes) == (4 * MIB, 8 * MIB)
            assert len(worker.groups["house"].namespace) == 32
            assert worker.num_described == 0  # nothing to tokenise
            prefix = await in_thread(register)
            acks = await until_stored(lambda: all_applied(prefix.version))
            assert (acks.share_group, acks.tenant_id) == ("house", "")
            await until(lambda: prefixes(worker) == [prefix.id])
            reading = await until(lambda: readings("grouped").get(prefix.id))
            num_tokens = len(worker.groups["house"].prefixes[0].token_ids)
            assert (reading.num_tokens, reading.shared_tokens) == (num_tokens, num_tokens // 16 * 16)
            assert (reading.model, reading.problem) == ("tiny", "")

    asyncio.run(story())


def test_readings_that_were_forgotten_are_told_again(
    group: ShareGroupView, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis keeps readings for a while only: they come again, however often the truth is looked at meanwhile."""
    monkeypatch.setattr(sharing, "REPEAT_SECONDS", 1.5 * POLL_SECONDS)

    async def story() -> None:
        async with scripted_worker("repeated", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            prefix = await in_thread(register)
            await until(lambda: prefix.id in readings("repeated"))
            with redis.Redis.from_url(settings.REDIS_URL) as client:
                client.delete(PREFIXES_KEY.format(worker_id="repeated"))
            await until(lambda: prefix.id in readings("repeated"))

    asyncio.run(story())


def test_removal_reaches_the_worker(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """A removed prefix leaves its group, a removed group leaves the worker, its name gets a new secret."""

    async def story() -> None:
        async with scripted_worker("removed", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            one, two = await in_thread(register), await in_thread(lambda: register("two", text=PROMPT + PROMPT))
            await until(lambda: sorted(prefixes(worker)) == sorted([one.id, two.id]))
            await in_thread(lambda: remove_prefix(group="house", prefix_id=one.id, actor=SYSTEM))
            await until(lambda: prefixes(worker) == [two.id])
            await until(lambda: list(readings("removed")) == [two.id])
            namespace = worker.groups["house"].namespace
            await in_thread(lambda: remove_share_group(name="house", actor=SYSTEM))
            await until(lambda: "house" not in worker.groups)
            assert worker.pushes[-1].removed_share_groups == ["house"]
            await until(lambda: readings("removed") == {})
            await in_thread(make_group)
            await until(lambda: "house" in worker.groups)
            assert worker.groups["house"].namespace != namespace
            assert prefixes(worker) == []

    asyncio.run(story())


def test_two_workers_get_their_own_tokens_and_share_the_limits(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """Each worker's prefix is in its own tokenizer's ids; together they hold the group's limit and no more."""

    async def story() -> None:
        async with scripted_worker("one", sockets) as one, scripted_worker("other", sockets) as other, controller():
            describe(one)
            describe(other, tokenizer_json=make_tokenizer(300).to_str().encode(), model="tiny-too", block_size=32)
            await join(one, 3 << 30)
            await join(other, 1 << 30)
            prefix = await in_thread(register)
            await until(lambda: prefixes(one) == prefixes(other) == [prefix.id])
            ids = [list(worker.groups["house"].prefixes[0].token_ids) for worker in (one, other)]
            assert ids[0] != ids[1]
            await until(lambda: one.groups["house"].kv_hard_bytes == 6 * MIB)
            await until(lambda: other.groups["house"].kv_hard_bytes == 2 * MIB)
            assert one.groups["house"].namespace == other.groups["house"].namespace
            await until(lambda: readings("one") and readings("other"))
            assert readings("other")[prefix.id].shared_tokens % 32 == 0
            assert readings("other")[prefix.id].model == "tiny-too"

    asyncio.run(story())


def test_a_worker_that_does_not_describe_itself_waits_alone(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """Policies and the group's limits reach it, others get their prefixes, and it gets its own once it answers."""

    async def story() -> None:
        async with scripted_worker("mute", sockets) as mute, scripted_worker("open", sockets) as other, controller():
            describe(other)
            await join(mute)
            await join(other)
            prefix = await in_thread(register)
            await until_stored(lambda: all_applied(prefix.version))
            await until(lambda: prefixes(other) == [prefix.id])
            assert prefixes(mute) == []
            version = await in_thread(lambda: set_hard(tenant, 1, 60 * MIB))
            await until_stored(lambda: all_applied(version))
            await until(lambda: mute.num_described > 1)
            assert mute.groups["house"].kv_hard_bytes > 0
            describe(mute)
            await until(lambda: prefixes(mute) == [prefix.id])

    asyncio.run(story())


def test_a_worker_that_comes_back_with_another_model_gets_other_tokens(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """Under the same id another model may answer: what is pushed is tokenised anew."""

    async def story() -> None:
        async with scripted_worker("changing", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            prefix = await in_thread(register)
            await until(lambda: prefixes(worker) == [prefix.id])
            before = list(worker.groups["house"].prefixes[0].token_ids)
            assert max(before) >= 300  # the other model has no such token: it refuses a push that names one
            other = {"digest": "e" * 64, "model": "tiny-too", "vocab_size": 300}
            describe(worker, tokenizer_json=make_tokenizer(300).to_str().encode(), **other)
            worker.break_stream()
            await until(lambda: prefixes(worker) and list(worker.groups["house"].prefixes[0].token_ids) != before)
            await until(lambda: readings("changing")[prefix.id].model == "tiny-too")
            version = await in_thread(lambda: set_hard(tenant, 1, 60 * MIB))
            await until_stored(lambda: all_applied(version))

    asyncio.run(story())


def test_what_a_model_cannot_share_is_not_pushed_and_the_reading_says_why(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """A prefix shorter than a block, or one longer than the context, is left out; the others go on."""

    async def story() -> None:
        async with scripted_worker("picky", sockets) as worker, controller():
            describe(worker, block_size=64, max_context_tokens=512)
            await join(worker)
            short = await in_thread(lambda: register("short", text="Be kind."))
            long = await in_thread(lambda: register("long", text=PROMPT * 50))
            right = await in_thread(register)
            await until(lambda: prefixes(worker) == [right.id])
            found = await until(lambda: len(now := readings("picky")) == 3 and now)
            assert "whole blocks of 64" in found[short.id].problem
            assert "512 tokens" in found[long.id].problem
            assert (found[short.id].shared_tokens, found[long.id].shared_tokens) == (0, 0)
            assert found[right.id].problem == ""

    asyncio.run(story())


def test_a_broken_stream_brings_the_prefixes_back_at_once(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """The snapshot of a worker that comes back has its prefixes: nothing is tokenised twice."""

    async def story() -> None:
        async with scripted_worker("back", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            prefix = await in_thread(register)
            await until(lambda: prefixes(worker) == [prefix.id])
            num_pushes = len(worker.pushes)
            worker.break_stream()
            await until(lambda: len(worker.pushes) > num_pushes)
            snapshot = worker.pushes[num_pushes]
            assert snapshot.snapshot
            assert [one.id for group in snapshot.share_groups for one in group.prefixes] == [prefix.id]

    asyncio.run(story())


def test_a_group_made_while_a_worker_is_away_is_in_its_snapshot(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """What was written meanwhile comes with the next stream, and a group that was removed meanwhile is gone."""

    async def story() -> None:
        async with scripted_worker("away", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            await until(lambda: "house" in worker.groups)
            worker.refuses = True
            worker.break_stream()
            await in_thread(lambda: remove_share_group(name="house", actor=SYSTEM))
            await in_thread(lambda: make_group("barn"))
            prefix = await in_thread(lambda: register(group="barn"))
            worker.refuses = False
            await until(lambda: prefixes(worker, "barn") == [prefix.id])
            assert list(worker.groups) == ["barn"]

    asyncio.run(story())


def test_a_group_grows_on_one_worker_only_after_it_shrank_on_the_other(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """A share group moves between workers as a tenant does: the newcomer waits for the ack of the smaller grant."""

    async def story() -> None:
        async with (
            scripted_worker("first", sockets) as first,
            scripted_worker("second", sockets) as second,
            controller(),
        ):
            await join(first)
            await until(lambda: "house" in first.groups and first.groups["house"].kv_hard_bytes == 8 * MIB)
            first.hold_acks = True
            await join(second)
            await until(lambda: first.groups["house"].kv_hard_bytes == 4 * MIB and "house" in second.groups)
            assert second.groups["house"].kv_hard_bytes == 0
            first.release_acks()
            await until(lambda: second.groups["house"].kv_hard_bytes == 4 * MIB)

    asyncio.run(story())


def test_a_new_leader_tokenises_anew(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """A leader that dies between a group's limits and its tokens leaves them to its successor."""

    async def story() -> None:
        async with scripted_worker("heir", sockets) as worker:
            await join(worker)
            async with controller():
                prefix = await in_thread(register)
                await until_stored(lambda: all_applied(prefix.version))
                await until(lambda: worker.num_described)
            assert prefixes(worker) == []
            describe(worker)
            async with controller():
                await until(lambda: prefixes(worker) == [prefix.id])
                assert worker.groups["house"].kv_hard_bytes == 8 * MIB

    asyncio.run(story())


def test_a_group_of_the_future_gives_way_to_a_restored_database(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """A worker that remembers a group which the database, restored from a backup, does not know forgets it."""

    async def story() -> None:
        async with scripted_worker("restored", sockets) as worker, controller():
            worker.mark = (77, 1 << 63)
            worker.groups["unknown"] = pb.ShareGroup(name="unknown", kv_hard_bytes=5 * MIB)
            await join(worker)
            await until(lambda: list(worker.groups) == ["house"])

    asyncio.run(story())


def test_limits_change_without_the_tokens_being_made_again(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """An operator's change of limits is pushed with the tokens that are known; the worker is asked for nothing."""

    async def story() -> None:
        async with scripted_worker("limits", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            prefix = await in_thread(register)
            await until(lambda: prefixes(worker) == [prefix.id])
            described = worker.num_described
            changed = await in_thread(
                lambda: update_share_group(
                    name="house", expected_version=prefix.version, changes={"kv_hard_bytes": 6 * MIB}, actor=SYSTEM
                )
            )
            await until_stored(lambda: all_applied(changed.version))
            assert worker.groups["house"].kv_hard_bytes == 6 * MIB
            assert prefixes(worker) == [prefix.id]
            assert worker.num_described == described

    asyncio.run(story())


def test_two_groups_with_the_same_prefix_stay_apart(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """Equal texts in two groups are two prefixes, in two namespaces."""

    async def story() -> None:
        async with scripted_worker("twins", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            await in_thread(lambda: make_group("barn"))
            one, two = await in_thread(register), await in_thread(lambda: register(group="barn"))
            await until(lambda: prefixes(worker) == [one.id] and prefixes(worker, "barn") == [two.id])
            house, barn = worker.groups["house"], worker.groups["barn"]
            assert house.namespace != barn.namespace
            assert house.prefixes[0].token_ids == barn.prefixes[0].token_ids

    asyncio.run(story())


def test_a_full_group_arrives_in_a_few_pushes(tenant: str, group: ShareGroupView, sockets: Path) -> None:
    """A new leader tokenises what has long been registered, and does not send the group anew for each prefix."""

    async def story() -> None:
        names = [f"p{number:02}" for number in range(64)]
        made = await in_thread(lambda: [register(name, text=f"{name} {PROMPT}").id for name in names])
        async with scripted_worker("full", sockets) as worker, controller():
            describe(worker)
            await join(worker)
            await until(lambda: sorted(prefixes(worker)) == sorted(made))
            assert sum(len(push.share_groups) for push in worker.pushes) < len(made)
            assert len(await until(lambda: len(now := readings("full")) == 64 and now)) == 64

    asyncio.run(story())


def test_what_goes_while_it_is_tokenised_leaves_nothing_behind(
    tenant: str, group: ShareGroupView, sockets: Path
) -> None:
    """A prefix, or its whole group, may be removed at any moment of its tokenising; the next one is not held up."""

    async def story() -> None:
        async with scripted_worker("gone", sockets) as worker, controller():
            describe(worker, max_context_tokens=1 << 20)
            await join(worker)
            kept = await in_thread(register)
            await until(lambda: prefixes(worker) == [kept.id])
            await in_thread(lambda: make_group("barn"))
            for number in range(3):
                long = await in_thread(lambda name=f"long-{number}": register(name, text=PROMPT * 1000))
                await in_thread(lambda long=long: remove_prefix(group="house", prefix_id=long.id, actor=SYSTEM))
            await in_thread(lambda: register("doomed", "barn", text=PROMPT * 1000))
            await in_thread(lambda: remove_share_group(name="barn", actor=SYSTEM))
            last = await in_thread(lambda: register("last", text=f"last {PROMPT}"))
            await until(lambda: sorted(prefixes(worker)) == sorted([kept.id, last.id]))
            await until(lambda: sorted(readings("gone")) == sorted([kept.id, last.id]))
            assert list(worker.groups) == ["house"]

    asyncio.run(story())


def test_redis_away_holds_up_no_prefix(tenant: str, group: ShareGroupView, sockets: Path, settings: Any) -> None:
    """Readings are for pages: without Redis the worker gets its prefixes all the same."""
    nowhere = f"unix://{sockets}/nothing.sock"
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [nowhere]}}
    }

    async def story() -> None:
        async with scripted_worker("unread", sockets) as worker, controller(redis_url=nowhere):
            describe(worker)
            await join(worker)
            prefix = await in_thread(register)
            await until(lambda: prefixes(worker) == [prefix.id])

    asyncio.run(story())
