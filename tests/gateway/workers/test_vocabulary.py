"""Tokens one by one: their bytes join to the text, whatever the tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from gateway.workers.vocabulary import Vocabulary
from tests.engine.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)


def sentencepiece() -> Tokenizer:
    """Return a tokenizer as Llama 2 has it: a space is part of a word, and unknown characters are bytes."""
    pieces = ["<unk>", "<s>", "▁", "▁the", "h", "e", "t", "▁t", "▁th", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


@pytest.mark.parametrize("text", ["the tenant", "Straße", "東京 🙂", "a\n\n b", "�"])
def test_bytes_join_to_the_text(text: str) -> None:
    """The bytes of a byte-level tokenizer's tokens are the text's, those of half characters too."""
    tokens = [VOCABULARY[number] for number in TOKENIZER.encode(text).ids]
    assert b"".join(token.data for token in tokens) == text.encode()
    assert [token.shown for token in tokens] == [token.data for token in tokens]


@given(st.text(max_size=40))
def test_bytes_join_to_any_text(text: str) -> None:
    """Any text."""
    assert b"".join(VOCABULARY[number].data for number in TOKENIZER.encode(text).ids) == text.encode()


def test_text_is_what_transformers_decodes() -> None:
    """A token's text is its decoding alone; bytes that are no character are U+FFFD."""
    for number in range(TOKENIZER.get_vocab_size()):
        assert VOCABULARY[number].text == TOKENIZER.decode([number], skip_special_tokens=False)


def test_half_a_character_is_not_whole() -> None:
    """A token of half a character says so, and keeps its byte."""
    token = VOCABULARY[TOKENIZER.token_to_id("Ã")]
    assert (token.text, token.data, token.is_whole) == ("\ufffd", b"\xc3", False)
    assert VOCABULARY[TOKENIZER.token_to_id("a")].is_whole


def test_special_token_is_not_shown() -> None:
    """A special token has a text, and no place in an output's."""
    number = TOKENIZER.token_to_id("<|im_end|>")
    token = VOCABULARY[number]
    assert (token.text, token.data, token.shown) == ("<|im_end|>", b"<|im_end|>", b"")
    assert VOCABULARY.special_id("<|im_end|>") == number
    assert VOCABULARY.special_id("a") is None


def test_row_without_a_token_is_empty() -> None:
    """A row that only pads the model's embedding has no text."""
    assert VOCABULARY[1 << 20] == ("", b"", b"")


@pytest.mark.parametrize("text", ["the the", "the ß", "🙂the"])
def test_sentencepiece_bytes_join_to_the_text(text: str) -> None:
    """A word keeps its space, the first one too, and a byte is a byte."""
    tokenizer = sentencepiece()
    vocabulary = Vocabulary(tokenizer)
    tokens = [vocabulary[number] for number in tokenizer.encode(text).ids]
    assert b"".join(token.data for token in tokens) == f" {text}".encode()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_added_token_is_as_it_is_written() -> None:
    """A token that was added and isn't special is shown as it stands."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<tool_call>\n"])
    token = Vocabulary(tokenizer)[tokenizer.token_to_id("<tool_call>\n")]
    assert token.shown == b"<tool_call>\n"


def test_words_of_wordpiece() -> None:
    """A piece that goes on a word has no space, one that begins a word has."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "ten": 1, "##ant": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    vocabulary = Vocabulary(tokenizer)
    assert [vocabulary[number].data for number in (1, 2)] == [b" ten", b"ant"]
