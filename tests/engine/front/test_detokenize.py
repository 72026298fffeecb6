"""Incremental text: whole characters only, no stop string, and the same text as decoding everything at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from engine.front.detokenize import StopFilter, StopStrings, TextStream, Utf8Stream
from tests.engine.tiny_model import make_tokenizer

BYTE_LEVEL = make_tokenizer()
TEXTS = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab 🙂👩‍👩‍👧‍👦東é\ufffd")), max_size=60
)


def _byte_fallback() -> Tokenizer:
    """A tokenizer of Llama 2's kind: word pieces with a leading mark, and single bytes for everything else."""
    pieces = ["▁", "▁Hello", "▁the", "a", "b", "<s>"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {piece: 256 + i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


BYTE_FALLBACK = _byte_fallback()
PIECES = st.lists(
    st.one_of(
        st.integers(256, 261).map(lambda piece: [piece]), st.sampled_from("🙂東é\ufffd").map(lambda c: list(c.encode()))
    ),
    max_size=30,
).map(lambda parts: [token_id for part in parts for token_id in part])


def _stream(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    stream = Utf8Stream(tokenizer)
    return [*(stream.push(token_id) for token_id in token_ids), stream.flush()]


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=150))
def test_any_tokens_stream_to_their_decoding(token_ids: list[int]) -> None:
    """Whatever the tokens, broken bytes and special tokens included, the pieces join to the decoding of all."""
    assert "".join(_stream(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)


@given(TEXTS)
def test_text_streams_in_whole_characters(text: str) -> None:
    """Every piece of a text is part of it: no character is ever split, and none is replaced."""
    pieces = _stream(BYTE_LEVEL, BYTE_LEVEL.encode(text, add_special_tokens=False).ids)
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(PIECES)
def test_byte_fallback_streams_to_its_decoding(token_ids: list[int]) -> None:
    """Tokenizers with byte fallback and a stripped leading space stream to the decoding of all."""
    assert "".join(_stream(BYTE_FALLBACK, token_ids)) == BYTE_FALLBACK.decode(token_ids, skip_special_tokens=True)


@given(st.lists(st.integers(0, BYTE_FALLBACK.get_vocab_size() - 1), max_size=150))
def test_broken_bytes_never_fail(token_ids: list[int]) -> None:
    """Bytes that form no character give replacement characters, whatever the tokenizer."""
    assert isinstance("".join(_stream(BYTE_FALLBACK, token_ids)), str)


@pytest.mark.parametrize("filler", [0, BYTE_LEVEL.token_to_id("ð")], ids=["special tokens", "first bytes of an emoji"])
def test_endless_silence_stays_cheap(filler: int) -> None:
    """Thousands of tokens without text are not decoded again with each step, and text after them is whole."""
    after = BYTE_LEVEL.encode("ok 🙂", add_special_tokens=False).ids
    token_ids = [*([filler] * 3000), *after]
    stream = Utf8Stream(BYTE_LEVEL)
    text = ""
    for token_id in token_ids:
        text += stream.push(token_id)
        assert len(stream._pending) <= 40
    assert text + stream.flush() == BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)


@given(text=TEXTS, stops=st.lists(st.text(alphabet="ab 🙂é", min_size=1, max_size=5), min_size=1, max_size=4))
@settings(max_examples=300)
def test_no_stop_string_leaves(text: str, stops: list[str]) -> None:
    """The output is the text before the first stop string; without one it is the whole text."""
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    stream = TextStream(BYTE_LEVEL, StopStrings(stops))
    out = ""
    stopped = False
    for token_id in token_ids:
        piece = stream.push([token_id])
        out += piece.text
        assert not any(stop in out for stop in stops)
        stopped = piece.stopped
        if stopped:
            break
    out += "" if stopped else stream.flush()
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (out, stopped) == (text, False)
        return
    assert stopped
    assert text.startswith(out)
    assert any(text.startswith(out + stop) for stop in stops)


@given(
    text=st.text(alphabet="abc", max_size=40),
    cuts=st.lists(st.integers(1, 5), min_size=1),
    stop=st.text("abc", min_size=1),
)
def test_filter_is_independent_of_the_cuts(text: str, cuts: list[int], stop: str) -> None:
    """However the text is cut into pieces, the filter lets the same text through."""
    assert _filtered(text, [len(text) or 1], stop) == _filtered(text, cuts, stop)


def _filtered(text: str, cuts: list[int], stop: str) -> str:
    out, position, turn = "", 0, 0
    stops = StopFilter(StopStrings([stop]))
    while position < len(text):
        size = cuts[turn % len(cuts)]
        passed, stopped = stops.push(text[position : position + size])
        out += passed
        if stopped:
            return out
        position, turn = position + size, turn + 1
    return out + stops.flush()


def test_possible_stop_is_held_back_and_given_back() -> None:
    """The beginning of a stop string waits until it is clear that none comes of it."""
    stops = StopFilter(StopStrings(["<end>"]))
    assert stops.push("text <en") == ("text ", False)
    assert stops.push("try") == ("<entry", False)
    assert stops.push(" <end") == (" ", False)
    assert stops.flush() == "<end"


def test_tokens_after_the_stop_do_not_count() -> None:
    """Of several tokens in one step, those after the stop string are not part of the output."""
    token_ids = BYTE_LEVEL.encode("abcSTOPdef", add_special_tokens=False).ids
    piece = TextStream(BYTE_LEVEL, StopStrings(["STOP"])).push(token_ids)
    assert (piece.text, piece.stopped) == ("abc", True)
    assert BYTE_LEVEL.decode(token_ids[: piece.num_tokens]).startswith("abcSTOP")
    assert "STOP" not in BYTE_LEVEL.decode(token_ids[: piece.num_tokens - 1])


@given(text=st.text(alphabet="ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1))
def test_filter_ends_with_the_first_stop_string_to_be_complete(text: str, stops: list[str]) -> None:
    """Of several stop strings the one that is complete first counts, and of those that are at once the longest."""
    filtered = StopFilter(StopStrings(stops))
    out, stopped = "", False
    for character in text:
        passed, stopped = filtered.push(character)
        out += passed
        if stopped:
            break
        assert not any(out.endswith(stop) for stop in stops)
    ends = [end for end in range(1, len(text) + 1) if text[:end].endswith(tuple(stops))]
    assert stopped == bool(ends)
    if ends:
        before = text[: ends[0]]
        assert out == before[: len(before) - max(len(stop) for stop in stops if before.endswith(stop))]
    else:
        assert out + filtered.flush() == text


def test_long_stop_strings_cost_a_look_a_character() -> None:
    """However many long stop strings nearly match, each character of the text is looked at a few times for each."""
    looked = 0

    class Counting(str):
        """A stop string that counts how often one of its characters is asked for."""

        __slots__ = ()

        def __getitem__(self, key: object) -> str:
            nonlocal looked
            looked += 1
            return super().__getitem__(key)  # type: ignore[index]

    strings = StopStrings([Counting("a" * 3000), Counting("aab" + "a" * 3000), Counting("a" * 2999 + "b")])
    looked = 0
    stops = StopFilter(strings)
    for _ in range(2998):
        assert stops.push("a") == ("", False)
    assert stops.push("c" * 10)[0] == "a" * 2998 + "c" * 10
    assert looked <= 3 * 3 * 3008


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
    num_early=st.integers(0, 40),
)
def test_filter_takes_no_notice_of_what_is_complete_too_early(text: str, stops: list[str], num_early: int) -> None:
    """The first stop string that is complete behind the early characters ends it, wherever it began."""
    filtered = StopFilter(StopStrings(stops))
    out, stopped = "", False
    for place, character in enumerate(text):
        passed, stopped = filtered.push(character, too_early=place < num_early)
        assert not (stopped and place < num_early)
        out += passed
        if stopped:
            break
    ends = [end for end in range(num_early + 1, len(text) + 1) if text[:end].endswith(tuple(stops))]
    assert stopped == bool(ends)
    if ends:
        before = text[: ends[0]]
        assert out == before[: len(before) - max(len(stop) for stop in stops if before.endswith(stop))]
    else:
        assert out + filtered.flush() == text


@given(text=st.text(alphabet="abc 🙂é", min_size=1, max_size=40), min_tokens=st.integers(0, 30), together=st.booleans())
def test_no_stop_string_ends_an_output_before_min_tokens(text: str, min_tokens: int, together: bool) -> None:
    """It ends with the first token from there on that completes one, be the tokens pushed one by one or all at once."""
    stops = ["a", "é", "b 🙂"]
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    stream = TextStream(BYTE_LEVEL, StopStrings(stops), min_tokens=min_tokens)
    count, out, stopped = 0, "", False
    for some in [token_ids] if together else [[token] for token in token_ids]:
        piece = stream.push(some)
        count, out, stopped = count + piece.num_tokens, out + piece.text, piece.stopped
        if stopped:
            break
    texts = [BYTE_LEVEL.decode(token_ids[: end + 1]) for end in range(len(token_ids))]
    whole = [place for place in range(len(texts)) if not texts[place].endswith("\ufffd")]
    before = ""
    expected = len(token_ids), text, False
    for place in whole:
        ends = [end for end in range(len(before) + 1, len(texts[place]) + 1) if text[:end].endswith(tuple(stops))]
        before = texts[place]
        if ends and place + 1 >= min_tokens:
            stop = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
            expected = place + 1, text[: ends[0] - len(stop)], True
            break
    assert (count, out + stream.flush(), stopped) == expected


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=80), st.sampled_from([0, 1, 2]))
def test_a_shown_special_token_is_written(token_ids: list[int], shown: int) -> None:
    """A special token that is shown stands in the text as it is named; what is between such tokens is as ever."""
    stream = Utf8Stream(BYTE_LEVEL, frozenset([shown]))
    text = "".join([*(stream.push(token_id) for token_id in token_ids), stream.flush()])
    runs: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id == shown:
            runs.append([])
        else:
            runs[-1].append(token_id)
    name = BYTE_LEVEL.id_to_token(shown)
    assert text == name.join(BYTE_LEVEL.decode(run, skip_special_tokens=True) for run in runs)
