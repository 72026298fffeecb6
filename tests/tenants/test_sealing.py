"""How texts lie in the database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import PepperMissing
from tenants.sealing import seal, unseal

PLAIN = b'{"text": "The harbour closes at nine."}' * 20


def sealed(plain: bytes = PLAIN) -> bytes:
    """Return a text of tenant a, row r."""
    return seal(plain, tenant_id="a", row_id="r", pepper="p")


@given(st.binary(max_size=2000))
def test_what_was_sealed_comes_back(plain: bytes) -> None:
    """Bytes of any kind and length."""
    assert unseal(memoryview(sealed(plain)), tenant_id="a", row_id="r", pepper="p") == plain


@pytest.mark.parametrize(
    "place",
    [{"tenant_id": "b"}, {"row_id": "s"}, {"pepper": "q"}, {"tenant_id": "ar", "row_id": ""}],
    ids=["another tenant", "another row", "another pepper", "another border between the two"],
)
def test_it_opens_in_its_place_alone(place: dict[str, str]) -> None:
    """A row that was moved, given to another tenant or stolen without the pepper opens nothing."""
    assert unseal(sealed(), **{"tenant_id": "a", "row_id": "r", "pepper": "p"} | place) is None


@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """One flipped bit anywhere, or a cut, and nothing comes back."""
    whole = bytearray(sealed())
    length = data.draw(st.integers(0, len(whole)))
    if length < len(whole):
        whole = whole[:length]
    else:
        bit = data.draw(st.integers(0, 8 * length - 1))
        whole[bit // 8] ^= 1 << bit % 8
    assert unseal(bytes(whole), tenant_id="a", row_id="r", pepper="p") is None


def test_nothing_of_a_text_shows() -> None:
    """Neither its words nor that two are the same."""
    assert b"harbour" not in sealed()
    assert sealed() != sealed()


def test_without_a_pepper_nothing_is_sealed() -> None:
    """Else the table alone would open it."""
    with pytest.raises(PepperMissing):
        seal(PLAIN, tenant_id="a", row_id="r", pepper="")
    with pytest.raises(PepperMissing):
        unseal(sealed(), tenant_id="a", row_id="r", pepper="")
