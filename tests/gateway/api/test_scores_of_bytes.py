"""Scores and text agree whatever the tokens' bytes are: real text streams, random tokens, stop strings anywhere."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.front.detokenize import StopStrings, TextStream
from engine.protocol import pb
from gateway.api.covering import Cover
from gateway.api.logprobs import Aligned, Scored, TextLogprobs, chat_logprobs
from gateway.workers.generation import TokenScore
from gateway.workers.vocabulary import Vocabulary
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.workers.test_vocabulary import sentencepiece

BYTE_LEVEL, FALLBACK = make_tokenizer(), sentencepiece()
VOCABULARIES = {"byte-level": Vocabulary(BYTE_LEVEL), "fallback": Vocabulary(FALLBACK)}
PIECES = ("a", "b", "é", "€", "🙂", "\ufffd", "the")
STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


def byte_tokens(data: bytes) -> list[int]:
    """Return one byte-level token a byte."""
    table = {VOCABULARIES["byte-level"][number].data: number for number in range(BYTE_LEVEL.get_vocab_size())}
    return [table[bytes([byte])] for byte in data]


def drawn_tokens(data: st.DataObject) -> list[int]:
    """Draw byte-level tokens: whole characters in as many tokens as bytes, merged ones, and bytes that are none."""
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["bytes", "character", "merged"]))
        if kind == "bytes":
            tokens += byte_tokens(data.draw(st.binary(min_size=1, max_size=4)))
        elif kind == "character":
            tokens += byte_tokens(data.draw(st.sampled_from(PIECES)).encode())
        else:
            tokens += BYTE_LEVEL.encode(data.draw(st.sampled_from(PIECES))).ids
    return tokens


def begins(tokens: Sequence[int]) -> list[int]:
    """Return in which character of the whole text each byte-level token begins, by Unicode's own rule."""
    vocabulary = VOCABULARIES["byte-level"]
    data = b"".join(vocabulary[token].shown for token in tokens)
    of_byte: list[int] = []
    number = 0
    while len(of_byte) < len(data):
        rest = data[len(of_byte) :]
        try:
            size = len(rest.decode()[0].encode())
        except UnicodeDecodeError as error:
            size = error.end if not error.start else len(rest[: error.start].decode()[0].encode())
        of_byte += [number] * size
        number += 1
    starts, at = [], 0
    for token in tokens:
        starts.append(of_byte[at] if at < len(of_byte) else number)
        at += len(vocabulary[token].shown)
    return starts


def told_of(
    tokenizer: Tokenizer, kind: str, tokens: Sequence[int], stops: Sequence[str], data: st.DataObject
) -> tuple[str, list[Scored], bool]:
    """Stream tokens as a worker does, joined as a slow reader gets them; return text, scores, and whether it stopped.

    After each piece of text, exactly the scores are told of which the text has the first byte.
    """
    stream = TextStream(tokenizer, StopStrings(stops))
    aligned = Aligned(VOCABULARIES[kind], ends=frozenset(), stops=bool(stops))
    text, told, at, stopped = "", [], 0, False
    unread: tuple[str, list[int]] = ("", [])
    while at < len(tokens) and not stopped:
        count = data.draw(st.integers(1, min(4, len(tokens) - at)))
        piece = stream.push(tokens[at : at + count])
        unread = (unread[0] + piece.text, unread[1] + list(tokens[at : at + piece.num_tokens]))
        at, stopped = at + count, piece.stopped
        if data.draw(st.booleans()):
            told += aligned.push(unread[0], unread[1], [TokenScore(-1.0)] * len(unread[1]))
            text, unread = text + unread[0], ("", [])
            if kind == "byte-level":
                assert len(told) == sum(begin < len(text) for begin in begins(tokens[:at]))
    told += aligned.push(unread[0], unread[1], [TokenScore(-1.0)] * len(unread[1]))
    rest = stream.flush()
    stopped_late = bool(stops) and not stopped and len(text + unread[0] + rest) < len(tokenizer.decode(list(tokens)))
    stopped = stopped or stopped_late
    told += aligned.finish(rest, STOP if stopped else LENGTH)
    return text + unread[0] + rest, told, stopped


@given(st.data())
def test_bytes_are_those_of_the_text(data: st.DataObject) -> None:
    """Without a stop string: all tokens, each once, whose bytes read as the text; offsets are where they begin."""
    tokens = drawn_tokens(data)
    text, told, _ = told_of(BYTE_LEVEL, "byte-level", tokens, (), data)
    assert [one.token for one in told] == tokens
    assert [one.offset for one in told] == begins(tokens)
    content = chat_logprobs(told, VOCABULARIES["byte-level"])["content"]
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode("utf-8", "replace") == text
    offsets = TextLogprobs(VOCABULARIES["byte-level"], "it: ").output(told)["text_offset"]
    assert offsets == [4 + begin for begin in begins(tokens)]


@given(st.data(), st.lists(st.sampled_from([*PIECES, "ab", "éa", "a€", "🙂b"]), min_size=1, max_size=2))
def test_scores_end_where_a_stop_string_cuts(data: st.DataObject, stops: list[str]) -> None:
    """Told are the tokens that begin in the text, and none that begins in what was cut off."""
    tokens = drawn_tokens(data)
    text, told, stopped = told_of(BYTE_LEVEL, "byte-level", tokens, stops, data)
    places = begins(tokens)
    expected = [token for token, begin in zip(tokens, places, strict=True) if begin < len(text)]
    assert [one.token for one in told] == (expected if stopped else tokens)
    assert [one.offset for one in told] == places[: len(told)]
    joined = b"".join(VOCABULARIES["byte-level"][one.token].data for one in told)
    assert joined.decode("utf-8", "replace")[: len(text)] == text


@given(st.data())
def test_a_tokenizer_that_falls_back_to_bytes(data: st.DataObject) -> None:
    """A U+FFFD for each byte, or for each beginning of a character: what comes after it is told with its own text."""
    runs = st.lists(st.sampled_from([0xE2, 0x82, 0xC3, 0xFF, 0x9F, 0x0A]), min_size=1, max_size=4)
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        tokens += [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in data.draw(runs)]
        tokens.append(FALLBACK.token_to_id("h"))
    cut = tokens.index(FALLBACK.token_to_id("h"))
    text, told, _ = told_of(FALLBACK, "fallback", tokens, (), data)
    assert [one.token for one in told] == tokens
    for one in told:
        assert (text[one.offset] == "h") is (one.token == FALLBACK.token_to_id("h"))
    before, first, stopped = told_of(FALLBACK, "fallback", tokens, ("h",), data)
    assert stopped
    assert [one.token for one in first] == tokens[:cut]
    assert "h" not in before


@pytest.mark.parametrize("text", ["a€", "a", "a🙂€b"])
def test_a_cut_in_the_middle_of_a_token(text: str) -> None:
    """A token that a stop string begins in is told whole: it is the last."""
    tokens = byte_tokens(text.encode())
    stream = TextStream(BYTE_LEVEL, StopStrings([text[-1]]))
    piece = stream.push(tokens)
    aligned = Aligned(VOCABULARIES["byte-level"], ends=frozenset(), stops=True)
    told = aligned.push(piece.text, tokens, [TokenScore(-1.0)] * len(tokens)) + aligned.finish("", STOP)
    assert b"".join(VOCABULARIES["byte-level"][one.token].data for one in told) == text[:-1].encode()


def test_bytes_that_are_never_a_character_cost_no_more_and_more() -> None:
    """Where a text may have come to is bounded, however long it is in doubt."""
    cover = Cover()
    for _ in range(2000):
        cover.add(b"\xe2")
        cover.add(b"\x82")
    assert cover.push("\ufffd" * 2000)[-1] == 4000
    assert len(cover._places) <= 8
    assert cover.add(b"a") == 4000


def test_a_first_space_that_the_text_lacks() -> None:
    """Decoders that leave out the first token's space shift nothing."""
    cover = Cover()
    assert [cover.add(b" a"), cover.add(b" b")] == [0, 2]
    assert cover.push("a b") == [2, 3, 4]
