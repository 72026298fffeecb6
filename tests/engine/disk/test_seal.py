"""A slab opens for its owner, under its key, as it was; or it does not open."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.disk.seal import Sealer, make_sealer
from tests.engine.disk.stores import SLOT_BYTES, STRIDE, content, get, holding, key, make_store, opened, put, wait_until

SECRET, OTHER = b"s" * 32, b"t" * 32
SEALERS = [make_sealer("a", b""), make_sealer("a", SECRET)]


def sealed(sealer: Sealer, number: int = 1) -> tuple[bytearray, bytes]:
    """Return what lies on the disk, and its proof."""
    stored = bytearray(SLOT_BYTES + 4096)
    proof = sealer.seal(key(number), memoryview(content(key(number))), memoryview(stored))
    return stored, proof


def opens(sealer: Sealer, stored: bytearray, proof: bytes, number: int = 1) -> bool:
    """Whether it opens; if so, it must be what was sealed."""
    into = bytearray(SLOT_BYTES)
    ok = sealer.open(key(number), proof, memoryview(bytearray(stored)), memoryview(into))
    assert not ok or into == content(key(number))
    return ok


@pytest.mark.parametrize("sealer", SEALERS)
def test_it_opens_as_it_was(sealer: Sealer) -> None:
    """And leaves nothing behind its end."""
    stored, proof = sealed(sealer)
    assert opens(sealer, stored, proof)
    assert not any(stored[SLOT_BYTES:])


@given(place=st.integers(0, SLOT_BYTES - 1), bit=st.integers(0, 7), encrypted=st.booleans(), in_proof=st.booleans())
def test_no_flipped_bit_opens(place: int, bit: int, encrypted: bool, in_proof: bool) -> None:
    """In the bytes or in the proof."""
    stored, proof = sealed(SEALERS[encrypted])
    if in_proof:
        place %= len(proof)
        proof = proof[:place] + bytes([proof[place] ^ 1 << bit]) + proof[place + 1 :]
    else:
        stored[place] ^= 1 << bit
    assert not opens(SEALERS[encrypted], stored, proof)


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_it_opens_for_nobody_else(secret: bytes) -> None:
    """Another owner with the same secret, another secret, none, or another key; nor with another kind of proof."""
    stored, proof = sealed(make_sealer("a", secret))
    assert not opens(make_sealer("b", secret), stored, proof)
    assert not opens(make_sealer("a", OTHER), stored, proof)
    assert not opens(make_sealer("a", b"" if secret else SECRET), stored, proof)
    assert not make_sealer("a", secret).open(key(2), proof, memoryview(stored), memoryview(bytearray(SLOT_BYTES)))
    for wrong in (b"", proof[:-1], proof + b"x"):
        assert not opens(make_sealer("a", secret), stored, wrong)


def test_no_key_and_nonce_ever_come_twice() -> None:
    """Salt and nonce are new for each slab, though the block is the same; so are the bytes."""
    proofs = [sealed(SEALERS[1]) for _ in range(200)]
    assert len({proof[:28] for _, proof in proofs}) == 200
    assert len({bytes(stored) for stored, _ in proofs}) == 200


def test_equal_secrets_are_known_again() -> None:
    """By a check that is not the secret, of that owner alone."""
    checks = {make_sealer(owner, secret).check for owner in ("a", "b") for secret in (SECRET, OTHER)}
    assert len(checks) == 4
    assert make_sealer("a", SECRET).check == make_sealer("a", SECRET).check
    assert SECRET not in checks


@pytest.mark.parametrize("sealer", SEALERS)
def test_records_open_as_they_were(sealer: Sealer) -> None:
    """Under their own name alone; no flipped byte opens."""
    name, stored = sealer.name("chät"), sealer.seal_record("chät", b"record")
    assert sealer.open_record(name, stored) == ("chät", b"record")
    assert sealer.open_record(sealer.name("other"), stored) is None
    for place in range(len(stored)):
        wrong = stored[:place] + bytes([stored[place] ^ 16]) + stored[place + 1 :]
        assert sealer.open_record(name, wrong) is None
    assert sealer.open_record(name, b"") is None


def test_a_secret_has_32_bytes(tmp_path: Path) -> None:
    """Anything else is refused, not padded."""
    with pytest.raises(ValueError, match="32 bytes, not 5"):
        make_sealer("a", b"short")
    with opened(tmp_path / "disk") as store, pytest.raises(ValueError, match="32 bytes, not 5"):
        store.limit("a", 16 * STRIDE, b"short")


def test_encrypted_bytes_are_on_the_disk_and_no_others(tmp_path: Path) -> None:
    """Neither blocks nor records nor the secret can be found in any file."""
    with opened(tmp_path / "disk") as store:
        store.limit("a", 16 * STRIDE, SECRET)
        put(store, range(4))
        store.put_session("a", "the-chat", b"the-record")
        wait_until(store, lambda: not store.is_busy)
        patterns = (SECRET, b"the-chat", b"the-record", *(content(key(number))[:32] for number in range(4)))
        assert holding(tmp_path / "disk", *patterns) == []
        assert all(get(store, number) for number in range(4))
    assert holding(tmp_path / "disk", *patterns) == []


@pytest.mark.parametrize("secret", [OTHER, b""])
def test_with_another_secret_after_a_restart_all_is_gone(tmp_path: Path, secret: bytes) -> None:
    """A miss, never garbage; the slots are free, and the bytes of no use to anybody are overwritten."""
    with opened(tmp_path / "disk") as store:
        store.limit("a", 16 * STRIDE, SECRET)
        put(store, range(4))
        store.put_session("a", "chat", b"record")
    before = (tmp_path / "disk" / "slabs-000000").read_bytes()[:64]
    store = make_store(tmp_path / "disk")
    store.limit("a", 16 * STRIDE, secret)
    assert not any(get(store, number) for number in range(4))
    assert store.sessions("a") == []
    assert store.used("a") == 0
    wait_until(store, lambda: not store.is_busy)
    assert holding(tmp_path / "disk", before) == []
    assert all(put(store, range(4)))
    assert all(get(store, number) for number in range(4))
    store.audit()
    store.close(60)


def test_without_cryptography_only_owners_with_a_secret_have_no_disk(tmp_path: Path) -> None:
    """Nothing of theirs is ever stored plain; it says so, and all others are served."""
    code = """
import sys
sys.modules["cryptography"] = None
from pathlib import Path
from tests.engine.disk.stores import *
with opened(Path(sys.argv[1])) as store:
    assert put(store, range(2)) == [True, True] and get(store, 0)
    store.limit("b", 16 * STRIDE, b"s" * 32)
    assert not store.write(key(5), "b", memoryview(content(key(5))))
    assert not store.put_session("b", "chat", b"record")
    assert store.stats().errors == {"no_cryptography": 1}
    store.audit()
"""
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "disk")], cwd=root, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
