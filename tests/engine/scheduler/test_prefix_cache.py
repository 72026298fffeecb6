"""What a request finds computed already, and that it gets the tokens that it would get alone."""

import pytest

from engine.request import FinishReason, Priority, TenantId
from tests.engine.world import ShortOutputs, World

PROMPT = [(7 * place) % 900 for place in range(41)]


def computed(world: World, sequence: int) -> int:
    """Step until a request has ended; return how many of its tokens were computed."""
    total = 0
    while sequence not in world.finished:
        assert world.step()
        assert world.plan is not None
        total += sum(len(part.token_ids) for part in world.plan.sequences if part.sequence == sequence)
    return total


def test_a_second_request_with_the_same_prompt_computes_one_token_of_it() -> None:
    """Whole blocks are shared, the rest is copied, the last token is computed; the admission says what was cached."""
    world = World(block_size=4)
    world.policy("minnow")
    first, second = world.submit("minnow", PROMPT, 4), None
    assert computed(world, first) == 41 + 3
    second = world.submit("minnow", PROMPT, 4, seed=int(first))
    assert computed(world, second) == 1 + 3
    assert (world.cached_tokens[first], world.cached_tokens[second]) == (0, 40)
    assert world.tokens[first] == world.tokens[second]
    assert world.scheduler.prefix_tokens == (82, 40)
    world.assert_empty()


def test_a_partial_block_is_copied() -> None:
    """A prompt that parts from another one inside a block computes only what follows, and the other stays whole."""
    world = World(block_size=16)
    world.policy("minnow")
    world.submit("minnow", PROMPT, 2)
    world.run()
    other = [*PROMPT[:27], 901, 902, 903]
    second = world.submit("minnow", other, 4)
    third = world.submit("minnow", PROMPT, 4)
    world.run()
    assert world.cached_tokens[second] == 27
    assert world.cached_tokens[third] >= 32
    world.assert_exact(second)
    world.assert_exact(third)


def test_the_next_turn_finds_the_answer() -> None:
    """Generated tokens are in the tree too, as they fill blocks."""
    world = World(block_size=4)
    world.policy("minnow")
    first = world.submit("minnow", PROMPT, 20)
    world.run()
    turn = [*PROMPT, *world.tokens[first], 5, 6, 7]
    second = world.submit("minnow", turn, 4)
    world.run()
    assert world.cached_tokens[second] == (len(PROMPT) + 20 - 1) // 4 * 4
    world.assert_exact(second)


def test_blocks_are_found_while_their_sequence_still_runs() -> None:
    """A block is in the tree as soon as it is full, not when the request ends."""
    world = World(block_size=4)
    world.policy("minnow")
    world.submit("minnow", PROMPT, 100)
    world.step()
    world.step()
    second = world.submit("minnow", PROMPT, 4)
    world.step()
    assert world.cached_tokens[second] == 40
    world.run()
    world.assert_exact(second)


def test_another_tenant_finds_nothing() -> None:
    """The same prompt in another namespace is computed whole."""
    world = World(block_size=4)
    world.policy("minnow")
    world.policy("whale")
    world.submit("minnow", PROMPT, 4)
    world.run()
    other = world.submit("whale", PROMPT, 4)
    assert computed(world, other) == 41 + 3
    assert world.cached_tokens[other] == 0
    world.assert_exact(other)


def test_a_request_without_a_namespace_shares_nothing() -> None:
    """It neither finds anything nor leaves anything behind."""
    world = World(block_size=4)
    world.policy("minnow")
    for _ in range(2):
        request = world.submit("minnow", PROMPT, 4, namespace=b"")
        world.run()
        assert world.cached_tokens[request] == 0
    assert world.scheduler.memory.pool.num_free == world.shape.num_blocks


def test_only_uncached_prompt_tokens_are_charged() -> None:
    """A tenant pays for what is computed for it: 41 tokens the first time, 1 the second."""
    world = World(block_size=4)
    world.policy("minnow")
    tenant = world.scheduler.roster.tenant("minnow")  # type: ignore[arg-type]
    charges = []
    for _ in range(2):
        before = tenant.counter
        world.submit("minnow", PROMPT, 1)
        world.run()
        charges.append(tenant.counter - before)
    assert charges == [41 * tenant.prefill_cost + tenant.output_cost, tenant.prefill_cost + tenant.output_cost]


def test_a_resumed_request_finds_what_it_had() -> None:
    """Preempted and brought back, a sequence computes only what was not in a full block."""
    world = World(block_size=4)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 20)
    for _ in range(6):
        world.step()
    state = world.scheduler.roster.sequences[request]
    world.scheduler.roster.preempt(state, -1, world.now)
    world.step()
    assert world.plan is not None
    (part,) = world.plan.sequences
    assert part.start == (len(PROMPT) + 5) // 4 * 4
    assert len(part.token_ids) <= 4
    world.run()
    world.assert_exact(request)
    assert world.cached_tokens[request] == 0


def test_the_same_prompt_twice_at_once_is_computed_once() -> None:
    """The second one waits for the first one's prefill and then shares it."""
    world = World(block_size=4, budget=16)
    world.policy("minnow")
    first, second = world.submit("minnow", PROMPT, 4), world.submit("minnow", PROMPT, 4)
    total = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
    assert world.cached_tokens[second] == 40
    assert total == 41 + 1 + 3 + 3
    world.assert_exact(first)
    world.assert_exact(second)


def test_nobody_waits_for_another_tenant() -> None:
    """Equal prompts of two tenants are both computed, at once."""
    world = World(block_size=4, budget=128)
    world.policy("minnow")
    world.policy("whale")
    requests = {world.submit("minnow", PROMPT, 4), world.submit("whale", PROMPT, 4)}
    world.step()
    assert set(world.running()) == requests


def test_nobody_waits_for_a_prefill_of_a_lower_class() -> None:
    """An interactive request does not wait for a batch request that may come last."""
    world = World(block_size=4, budget=8)
    world.policy("minnow", priority=Priority.INTERACTIVE)
    world.submit("minnow", PROMPT, 4, priority=Priority.BATCH)
    world.step()
    urgent = world.submit("minnow", PROMPT, 1, priority=Priority.INTERACTIVE)
    world.step()
    assert urgent in world.running()


def test_the_wait_is_bounded() -> None:
    """A prefill that makes no progress holds the second request up for a few plans and no longer."""
    world = World(block_size=4, budget=4)
    for tenant in ("minnow", "whale"):
        world.policy(tenant, weight=1.0 if tenant == "minnow" else 1000.0)
    world.submit("minnow", PROMPT, 4)
    world.step()
    for _ in range(8):
        world.submit("whale", 200, 50)
    second = world.submit("minnow", PROMPT, 1)
    for _ in range(400):
        world.step()
        if second in world.running() or second in world.finished:
            break
    state = world.scheduler.roster.sequences.get(second)
    assert second in world.finished or (state is not None and state.table is not None)


def test_a_share_group_shares_its_registered_prefix() -> None:
    """Two tenants of a group compute it once, on the group's account; what follows it is each one's own."""
    world = World(block_size=4)
    world.share("bank", PROMPT[:26])
    for tenant in ("minnow", "whale"):
        world.policy(tenant, share_groups=("bank",))
    world.policy("carp")
    first = world.submit("minnow", PROMPT, 4)
    world.run()
    second, stranger = world.submit("whale", PROMPT, 4), world.submit("carp", PROMPT, 4)
    world.run()
    assert (world.cached_tokens[first], world.cached_tokens[second], world.cached_tokens[stranger]) == (0, 24, 0)
    group = next(account for account in world.scheduler.memory.accounts if account.hard == 16)
    assert group.blocks == 6
    assert world.cached("minnow") == world.cached("whale") == (len(PROMPT) + 3) // 4 - 6
    for request in (first, second, stranger):
        world.assert_exact(request)
    world.assert_empty()


def test_a_group_without_room_leaves_its_tenants_alone() -> None:
    """Where the group's account cannot hold the prefix, each tenant computes it for itself."""
    world = World(block_size=4)
    world.share("bank", PROMPT[:26], blocks=5)
    world.policy("minnow", share_groups=("bank",))
    for expected in (0, 40):
        request = world.submit("minnow", PROMPT, 4)
        world.run()
        assert world.cached_tokens[request] == expected
        world.assert_exact(request)


def test_a_removed_group_takes_its_blocks_along() -> None:
    """Its running users go on with blocks of their own, exact; nothing of the group is left."""
    world = World(block_size=4, budget=64)
    world.share("bank", PROMPT[:26])
    for tenant in ("minnow", "whale"):
        world.policy(tenant, share_groups=("bank",))
    requests = [world.submit(tenant, PROMPT, 20) for tenant in ("minnow", "whale")]
    for _ in range(4):
        world.step()
    world.share("bank")
    world.run()
    for request in requests:
        assert world.finished[request] is FinishReason.LENGTH
        world.assert_exact(request)
    assert len(list(world.scheduler.memory.accounts)) == 2


def test_a_registered_prefix_is_pinned_by_the_groups_soft_limit() -> None:
    """However much other tenants compute, a prefix within its group's guarantee stays."""
    world = World(block_size=4, num_blocks=32)
    world.share("bank", PROMPT[:26], blocks=6, soft=6)
    world.policy("minnow", share_groups=("bank",))
    world.policy("whale")
    world.submit("minnow", PROMPT, 1)
    for _ in range(30):
        world.submit("whale", 60, 4)
        world.run()
    assert world.scheduler.memory.supply.num_evicted > 100
    request = world.submit("minnow", PROMPT, 1)
    world.run()
    assert world.cached_tokens[request] >= 24
    assert next(account for account in world.scheduler.memory.accounts if account.hard == 6).blocks == 6


def test_members_that_come_at_once_share_where_the_group_has_room_for_one() -> None:
    """The later ones wait for the first one's prefill; they are no reason to give the sharing up."""
    world = World(block_size=4, budget=128)
    world.share("bank", PROMPT[:26], blocks=6)
    for tenant in ("minnow", "whale"):
        world.policy(tenant, share_groups=("bank",))
    requests = [world.submit(tenant, [*PROMPT, number], 4) for number in range(2) for tenant in ("minnow", "whale")]
    world.run()
    assert world.cached_tokens[requests[0]] == 0
    assert all(world.cached_tokens[request] >= 24 for request in requests[1:])
    for request in requests:
        world.assert_exact(request)


LONG = [(5 * place) % 700 for place in range(200)]


@pytest.mark.parametrize(("soft", "num_users"), [(0, 1), (20, 1), (0, 3)])
def test_a_guarantee_takes_what_a_share_group_has_borrowed(soft: int, num_users: int) -> None:
    """A prefix in use fills the pool above its group's guarantee; a tenant within its own runs in the next step."""
    world = World(block_size=4, budget=512)
    world.share("bank", LONG, blocks=64, soft=soft)
    world.policy("whale", soft=10, share_groups=("bank",))
    world.policy("minnow", soft=30)
    world.scheduler.roster.tenant(TenantId("whale")).lengths = ShortOutputs()
    users = [world.submit("whale", [*LONG, number], 11) for number in range(num_users)]
    for _ in range(3):
        world.step()
    assert world.running() == users
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    for request in users:
        world.assert_exact(request)


@pytest.mark.parametrize("num_prompt", range(1, 9))
def test_growth_within_a_guarantee_takes_what_a_share_group_has_borrowed(num_prompt: int) -> None:
    """A running tenant that stays within its guarantee is never preempted for a group that is above its own."""
    world = World(block_size=4, budget=512)
    world.share("bank", LONG, blocks=64, soft=0)
    world.policy("whale", soft=25, share_groups=("bank",))
    world.policy("minnow", soft=30)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    minnow = world.submit("minnow", num_prompt, 100)
    world.step()
    user = world.submit("whale", [*LONG, 1], 45)
    world.run()
    assert world.outputs[minnow][-1].num_preemptions == 0
    assert world.outputs[user][-1].num_preemptions > 0
    for request in (minnow, user):
        world.assert_exact(request)


def test_a_share_group_above_its_guarantee_preempts_nobody() -> None:
    """A member within its guarantee gets what that guarantees, and not, by the way, its group's whole prefix."""
    world = World(block_size=4, budget=512)
    world.share("bank", LONG, blocks=64, soft=0)
    world.policy("minnow", soft=4, share_groups=("bank",))
    world.policy("whale")
    whale = world.submit("whale", 180, 40)
    world.step()
    member = world.submit("minnow", [*LONG, 1], 2)
    world.run()
    assert world.scheduler.roster.num_preemptions == 0
    for request in (whale, member):
        world.assert_exact(request)


def test_users_of_one_prefix_take_few_blocks() -> None:
    """A hundred users of one long prefix need at most a tenth of the blocks that they would need unshared."""
    world = World(block_size=4, num_blocks=700, max_rows=100, budget=1000, max_context=640)
    world.policy("minnow", blocks=700, max_running=100, max_context_tokens=640)
    prefix = [(11 * place) % 900 for place in range(500)]
    for number in range(100):
        world.submit("minnow", [*prefix, number], 10)
    most = 0
    while world.step():
        if len(world.running()) == 100:
            most = max(most, world.held("minnow"))
    assert 0 < most <= 0.1 * 100 * 126
