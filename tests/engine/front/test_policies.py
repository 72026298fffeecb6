"""The merge of policy pushes: tenants and share groups."""

import pytest

from engine import ipc
from engine.errors import ProtocolError
from engine.front.policies import POLICY, SHARE_GROUPS, PolicyBook, policy_frame
from engine.protocol import pb

SECRET = bytes(range(32))


def group(name: str, *prefixes: list[int], soft: int = 1, hard: int = 2, namespace: bytes = SECRET) -> pb.ShareGroup:
    """A share group with prefixes."""
    return pb.ShareGroup(
        name=name,
        namespace=namespace,
        kv_soft_bytes=soft,
        kv_hard_bytes=hard,
        prefixes=[pb.SharedPrefix(id=f"p{index}", token_ids=tokens) for index, tokens in enumerate(prefixes)],
    )


def names(book: PolicyBook) -> tuple[list[str], list[str]]:
    """Tenants and groups in force."""
    return sorted(tenant.tenant for tenant in book.tenants), sorted(group.name for group in book.share_groups)


def test_delta_replaces_what_it_names() -> None:
    """A delta adds, replaces and removes groups by name and leaves the others, and tenants, alone."""
    book = PolicyBook()
    tenant = pb.TenantPolicy(tenant="a", weight=1, share_groups=["x"])
    book.take(pb.PolicyPush(version=1, snapshot=True, tenants=[tenant], share_groups=[group("x", [1]), group("y")]))
    book.take(pb.PolicyPush(version=2, share_groups=[group("z"), group("y", [7, 8])], removed_share_groups=["x", "no"]))
    assert names(book) == (["a"], ["y", "z"])
    assert book.snapshot() == pb.PolicyPush(
        version=2, snapshot=True, tenants=[tenant], share_groups=[group("y", [7, 8]), group("z")]
    )


def test_snapshot_replaces_all_groups() -> None:
    """A snapshot forgets every group that it does not name."""
    book = PolicyBook()
    book.take(pb.PolicyPush(version=1, snapshot=True, share_groups=[group("x"), group("y")]))
    book.take(pb.PolicyPush(version=1, epoch=1, snapshot=True, share_groups=[group("y")]))
    assert names(book) == ([], ["y"])


def test_named_and_removed_group_is_in_force() -> None:
    """A group that a push both removes and names was removed and made anew."""
    book = PolicyBook()
    book.take(pb.PolicyPush(version=1, share_groups=[group("x")], removed_share_groups=["x"]))
    assert names(book) == ([], ["x"])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (group(""), "has no name"),
        (group("x", namespace=b"short"), "share group x has 5 bytes instead of 32"),
        (group("x", soft=3), "soft limit of 3 bytes above its hard limit of 2"),
        (group("x", [1], [1, 384]), "prefix p1 of share group x has a token id >= 384"),
    ],
)
def test_bad_group_refuses_the_push_as_a_whole(bad: pb.ShareGroup, says: str) -> None:
    """A group that cannot be in force is named, without its secret, and nothing of its push is taken."""
    book = PolicyBook()
    book.serve_model(384)
    book.take(pb.PolicyPush(version=1, share_groups=[group("kept")]))
    tenant = pb.TenantPolicy(tenant="b", weight=1)
    with pytest.raises(ProtocolError, match=says) as caught:
        book.take(pb.PolicyPush(version=2, snapshot=True, tenants=[tenant], share_groups=[group("good"), bad]))
    assert SECRET.hex() not in str(caught.value)
    assert (names(book), book.order) == (([], ["kept"]), (1, 0))


def test_what_is_told_of_groups_holds_no_secret() -> None:
    """A group is told with its limits alone."""
    book = PolicyBook()
    book.take(pb.PolicyPush(version=1, share_groups=[group("x", [1, 2, 3])]))
    assert list(book.share_groups) == [pb.ShareGroup(name="x", kv_soft_bytes=1, kv_hard_bytes=2)]


def test_saved_parts_bring_the_book_back() -> None:
    """What was unsaved makes an equal book; groups are written again only when they have changed."""
    book = PolicyBook()
    tenants = [pb.TenantPolicy(tenant="a", weight=1)]
    book.take(pb.PolicyPush(version=1, snapshot=True, tenants=tenants, share_groups=[group("x", [1, 2]), group("y")]))
    saved = book.unsaved()
    book.take(pb.PolicyPush(version=1, epoch=1, tenants=[pb.TenantPolicy(tenant="b", weight=2)]))
    saved |= (part := book.unsaved())
    assert part.keys() == {POLICY}
    assert PolicyBook(saved[POLICY], saved[SHARE_GROUPS]).snapshot() == book.snapshot()
    book.take(pb.PolicyPush(version=2, removed_share_groups=["x"]))
    saved |= book.unsaved()
    again = PolicyBook(saved[POLICY], saved[SHARE_GROUPS])
    assert again.snapshot() == book.snapshot()
    assert again.unsaved().keys() == {POLICY}
    book.take(pb.PolicyPush(version=3, snapshot=True))
    saved |= book.unsaved()
    assert names(PolicyBook(saved[POLICY], saved[SHARE_GROUPS])) == ([], [])


def test_snapshot_of_an_earlier_version_loads() -> None:
    """A policy that was saved before there were share groups is taken as it is."""
    old = pb.PolicyPush(version=4, epoch=2, snapshot=True, tenants=[pb.TenantPolicy(tenant="a", weight=1)])
    book = PolicyBook(old.SerializeToString())
    assert (names(book), book.order) == ((["a"], []), (4, 2))


def test_saved_prefixes_of_another_model_are_dropped() -> None:
    """After a restart with a smaller vocabulary the prefixes that the model cannot read are gone, their groups stay."""
    book = PolicyBook()
    book.take(pb.PolicyPush(version=1, share_groups=[group("x", [1, 2], [3, 9]), group("y", [9])]))
    saved = book.unsaved()
    again = PolicyBook(saved[POLICY], saved[SHARE_GROUPS])
    again.serve_model(9)
    assert list(again.snapshot().share_groups) == [group("x", [1, 2]), group("y")]


def test_core_gets_groups_whole() -> None:
    """The core's frame carries what a push says of groups, and which groups a tenant is in."""
    frame = policy_frame(
        pb.PolicyPush(
            version=3,
            epoch=1,
            tenants=[pb.TenantPolicy(tenant="a", weight=1, share_groups=["x"])],
            share_groups=[group("x", [1, 2], [3])],
            removed_share_groups=["y"],
        )
    )
    assert frame.tenants[0].share_groups == ["x"]
    assert frame.share_groups == [
        ipc.PolicyShareGroup(name="x", namespace=SECRET, kv_soft_bytes=1, kv_hard_bytes=2, prefixes=[[1, 2], [3]])
    ]
    assert frame.removed_share_groups == ["y"]
    assert ipc.decode_to_core(ipc.encode(frame)) == frame


def test_a_disk_secret_reaches_the_core_and_nothing_else() -> None:
    """It is neither saved nor told to a controller; a process that starts from what was saved waits for it."""
    book = PolicyBook()
    open_, hidden = pb.TenantPolicy(tenant="a", weight=1), pb.TenantPolicy(tenant="b", weight=1, disk_secret=SECRET)
    book.take(pb.PolicyPush(version=1, snapshot=True, tenants=[open_, hidden]))
    assert {one.tenant: one.disk_secret for one in policy_frame(book.snapshot()).tenants} == {"a": b"", "b": SECRET}
    assert not any(one.disk_secret for one in book.tenants)
    saved = book.unsaved()[POLICY]
    assert SECRET not in saved
    again = PolicyBook(saved)
    assert not any(one.disk_secret for one in again.tenants)
    told = {one.tenant: (one.disk_secret, one.disk_locked) for one in policy_frame(again.snapshot()).tenants}
    assert told == {"a": (b"", False), "b": (b"", True)}
    again.take(pb.PolicyPush(version=1, epoch=1, snapshot=True, tenants=[hidden]))
    (tenant,) = policy_frame(again.snapshot()).tenants
    assert (tenant.disk_secret, tenant.disk_locked) == (SECRET, False)
    assert PolicyBook(PolicyBook(saved).unsaved()[POLICY]).unsaved()[POLICY] == saved


def test_a_disk_secret_of_another_length_is_refused() -> None:
    """The push as a whole, by name, without the secret in what is said."""
    with pytest.raises(ProtocolError, match="disk secret of tenant a has 5 bytes instead of 32") as refused:
        PolicyBook().take(
            pb.PolicyPush(version=1, tenants=[pb.TenantPolicy(tenant="a", weight=1, disk_secret=b"12345")])
        )
    assert "12345" not in str(refused.value)
