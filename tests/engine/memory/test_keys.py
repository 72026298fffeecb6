"""Keys of blocks: what goes into them, and that nothing else does."""

import hashlib
import struct

import pytest

from engine.memory.keys import BlockHasher, KeyChain, SharedHead

TOKENS = list(range(100, 116))


def make_hasher(*, model: bytes = b"model", kv_format: str = "bf16") -> BlockHasher:
    """Return a hasher of 4-token blocks."""
    return BlockHasher(model=model, kv_format=kv_format, block_size=4)


def chain_of(tokens: list[int], namespace: bytes = b"secret", hasher: BlockHasher | None = None) -> list[bytes]:
    """Return the keys of all full blocks."""
    chain = KeyChain(hasher or make_hasher(), namespace)
    chain.extend(tokens, len(tokens) // 4)
    return list(chain.keys)


def framed(*fields: bytes) -> bytes:
    """Return the SHA-256 of length-framed fields."""
    return hashlib.sha256(b"".join(struct.pack("<I", len(field)) + field for field in fields)).digest()


def test_keys_are_sha256_over_framed_fields() -> None:
    """The documented formula, step by step."""
    root = framed(b"secret", b"model", b"bf16", b"")
    first = framed(root, struct.pack("<4i", *TOKENS[:4]))
    second = framed(first, struct.pack("<4i", *TOKENS[4:8]))
    assert chain_of(TOKENS)[:2] == [first, second]


def test_keys_do_not_depend_on_how_they_were_asked_for() -> None:
    """All at once, block by block, or from a numpy row: the same keys."""
    chain = KeyChain(make_hasher(), b"secret")
    for count in range(1, 5):
        chain.extend(TOKENS, count)
    assert list(chain.keys) == chain_of(TOKENS)


@pytest.mark.parametrize(
    "other",
    [
        chain_of(TOKENS, b"another"),
        chain_of(TOKENS, b"secre"),
        chain_of(TOKENS, hasher=make_hasher(model=b"mode", kv_format="lbf16")),
        chain_of(TOKENS, hasher=make_hasher(kv_format="fp8")),
        chain_of([*TOKENS[4:], *TOKENS[:4]]),
    ],
)
def test_any_other_field_gives_other_keys(other: list[bytes]) -> None:
    """Namespace, model, format and what came before are all in every key; frames keep fields apart."""
    assert not set(chain_of(TOKENS)) & set(other)


def test_a_change_of_one_token_changes_all_later_keys() -> None:
    """Keys before the change stay, those from it on are others."""
    changed = [*TOKENS[:9], -1, *TOKENS[10:]]
    ours, theirs = chain_of(TOKENS), chain_of(changed)
    assert ours[:2] == theirs[:2]
    assert not set(ours[2:]) & set(theirs[2:])


def test_a_shared_head_has_the_groups_keys_and_then_the_tenants() -> None:
    """Two tenants of a group agree on the head and on nothing after it."""
    hasher, head = make_hasher(), SharedHead(b"group", 7, 2)
    chains = [KeyChain(hasher, namespace, head) for namespace in (b"a", b"b")]
    for chain in chains:
        chain.extend(TOKENS, 4)
    one, other = chains
    assert one.keys[:2] == other.keys[:2] == chain_of(TOKENS, b"group")[:2]
    assert not set(one.keys[2:]) & set(other.keys[2:])
    assert [one.root(index) is not None for index in range(4)] == [True, False, True, False]


def test_a_fork_goes_its_own_way() -> None:
    """A forked chain shares what was there, and what either adds is its own."""
    chain = KeyChain(make_hasher(), b"secret")
    chain.extend(TOKENS, 2)
    fork = chain.fork(2)
    fork.extend([*TOKENS[:8], 1, 2, 3, 4], 3)
    chain.extend(TOKENS, 3)
    assert chain.keys[:2] == fork.keys[:2]
    assert chain.keys[2] != fork.keys[2]
