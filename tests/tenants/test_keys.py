"""The form of keys."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import PepperMissing
from tenants.keys import CHECKSUM_LENGTH, checksum, key_digest, new_key, parse_key

BASE62 = string.digits + string.ascii_letters
KINDS = st.sampled_from(["live", "op", "adm"])


@given(KINDS)
def test_a_new_key_parses(kind: str) -> None:
    """What we make, we read: kind and id come back."""
    raw = new_key(kind)
    parsed = parse_key(raw)
    assert parsed is not None
    assert (parsed.kind, parsed.key_id) == (kind, raw.split("_")[2])


@given(KINDS, st.data())
def test_one_wrong_character_is_noticed(kind: str, data: st.DataObject) -> None:
    """The checksum finds any single mistyped character."""
    raw = new_key(kind)
    place = data.draw(st.integers(0, len(raw) - 1))
    other = data.draw(st.sampled_from([c for c in BASE62 + "_-" if c != raw[place]]))
    assert parse_key(raw[:place] + other + raw[place + 1 :]) is None


@given(KINDS, st.data())
def test_two_swapped_neighbours_are_noticed(kind: str, data: st.DataObject) -> None:
    """The checksum finds two characters in the wrong order."""
    raw = new_key(kind)
    place = data.draw(st.integers(0, len(raw) - 2))
    swapped = raw[:place] + raw[place + 1] + raw[place] + raw[place + 2 :]
    assert (parse_key(swapped) is None) == (swapped != raw)


@given(st.text() | st.from_regex(r"tg_(live|op|adm)_[0-9A-Za-z_]*") | st.text().map(lambda tail: "tg_live_" + tail))
def test_any_text_parses_or_not_without_an_error(text: str) -> None:
    """Whatever a client sends as a key is judged, never an exception, and made-up text is no key."""
    assert parse_key(text) is None


@given(KINDS)
def test_blanks_and_newlines_around_a_key_are_not_part_of_it(kind: str) -> None:
    """A trailing newline, which `$` in a pattern would let pass, is refused."""
    raw = new_key(kind)
    assert parse_key(raw + "\n") is None
    assert parse_key(" " + raw) is None


def test_keys_do_not_repeat() -> None:
    """Ids and secrets are random."""
    keys = [new_key("live") for _ in range(1000)]
    assert len(set(keys)) == len({key.split("_")[2] for key in keys}) == 1000


def test_checksum_is_stable() -> None:
    """The checksum is part of the public form: a scanner computes it by itself."""
    assert checksum("tg_live_000000000000_00000000000000000000000000000000") == "4D5z9Q"
    assert len(checksum("")) == CHECKSUM_LENGTH


@given(st.text(min_size=1))
def test_digest_depends_on_the_pepper(pepper_tail: str) -> None:
    """A stolen table cannot be searched without the pepper."""
    raw = new_key("live")
    assert key_digest(raw, "pepper") == key_digest(raw, "pepper")
    assert key_digest(raw, "pepper") != key_digest(raw, "pepper" + "x" + "y" * len(pepper_tail))
    assert len(key_digest(raw, "pepper")) == 64


def test_digest_refuses_to_work_without_a_pepper() -> None:
    """An unset pepper is an error, not an empty HMAC key."""
    with pytest.raises(PepperMissing, match="KEY_PEPPER"):
        key_digest(new_key("live"), "")
