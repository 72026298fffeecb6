"""Which scores are told when, and how the two surfaces write them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import pb
from gateway.api.logprobs import Aligned, Scored, TextLogprobs, chat_logprobs
from gateway.workers.generation import TokenScore
from gateway.workers.vocabulary import Vocabulary
from tests.engine.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")
STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


def ids(text: str) -> list[int]:
    """Return a text's tokens."""
    return list(TOKENIZER.encode(text).ids)


def scores(tokens: list[int]) -> list[TokenScore]:
    """Return a score a token, each another."""
    return [TokenScore(-float(number)) for number, _ in enumerate(tokens, start=1)]


def aligned(*, stops: bool = False) -> Aligned:
    """Return the alignment of one output."""
    return Aligned(VOCABULARY, ends=frozenset({END}), stops=stops)


def joined(scored: list[Scored]) -> bytes:
    """Return the bytes of scored tokens."""
    return b"".join(VOCABULARY[token].data for token, *_ in scored)


def test_scores_wait_for_their_text() -> None:
    """A token of half a character is told with the one that completes it."""
    first, *rest = ids("🙂")
    assert rest
    one = aligned()
    assert one.push("", [first], scores([first])) == []
    told = one.push("🙂", rest, scores(rest))
    assert joined(told) == "🙂".encode()
    assert one.finish("", LENGTH) == []


def test_end_token_has_no_score() -> None:
    """The token that ends an output is none of its tokens."""
    tokens = [*ids("the tenant"), END]
    one = aligned(stops=True)
    told = one.push("the tenant", tokens, scores(tokens)) + one.finish("", STOP)
    assert joined(told) == b"the tenant"


def test_what_a_stop_string_cuts_off_has_no_scores() -> None:
    """Tokens of a stop string are not told, the one that holds its first character and more before it is."""
    tokens = ids("the tenant") + ids(" holds the block")
    one = aligned(stops=True)
    told = one.push("the ten", tokens, scores(tokens)) + one.finish("", STOP)
    text = joined(told)
    assert text.startswith(b"the ten")
    assert b" holds" not in text


def test_a_shown_special_token_is_part_of_the_text() -> None:
    """A special token that the text has counts in it: what a stop string cuts off behind it has no scores."""
    start = TOKENIZER.token_to_id("<|im_start|>")
    tokens = [start, *ids("the tenant"), *ids(" holds the block")]
    one = Aligned(VOCABULARY, ends=frozenset({END}), stops=True, shown=frozenset({start}))
    told = one.push("<|im_start|>the ten", tokens, scores(tokens)) + one.finish("", STOP)
    text = joined(told)
    assert text.startswith(b"<|im_start|>the ten")
    assert b" holds" not in text


def test_stop_string_at_the_very_beginning() -> None:
    """An output that begins with a stop string has no text and no scores."""
    one = aligned(stops=True)
    assert one.push("", ids("the"), scores(ids("the"))) == []
    assert one.finish("", STOP) == []


def test_held_text_is_told_at_the_end_with_its_scores() -> None:
    """What might have begun a stop string, and did not, comes with its scores."""
    tokens = ids("the tenant")
    one = aligned(stops=True)
    told = one.push("the t", tokens, scores(tokens))
    told += one.finish("enant", LENGTH)
    assert [one[:2] for one in told] == list(zip(tokens, scores(tokens), strict=True))


@given(st.text(min_size=1, max_size=30), st.data())
def test_every_token_is_told_once(text: str, data: st.DataObject) -> None:
    """However text and tokens are cut, each token of an output that no stop string ended is told once, in order."""
    tokens = ids(text)
    stops = data.draw(st.booleans())
    one, told, given_scores = aligned(stops=stops), [], scores(tokens)
    at = written = 0
    while at < len(tokens):
        count = data.draw(st.integers(1, len(tokens) - at))
        upto = data.draw(st.integers(written, len(text))) if at + count < len(tokens) else len(text)
        told += one.push(text[written:upto], tokens[at : at + count], given_scores[at : at + count])
        at, written = at + count, upto
    told += one.finish(text[written:], LENGTH)
    assert [one.token for one in told] == tokens
    assert [one.score for one in told] == given_scores


def test_chat_form() -> None:
    """Each token with its bytes and the likeliest ones; impossible is a number, because JSON has no infinity."""
    (half, *_), (whole,) = ids("🙂"), ids("a")
    score = TokenScore(-math.inf, ((whole, -0.5), (half, -1.0)))
    answer = chat_logprobs([Scored(half, score)], VOCABULARY)
    assert answer["refusal"] is None
    (entry,) = answer["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("\ufffd", -9999.0, list(VOCABULARY[half].data))
    assert entry["top_logprobs"][0] == {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert [one["logprob"] for one in entry["top_logprobs"]] == [-0.5, -1.0]


def test_text_form_of_an_output() -> None:
    """Lists with an entry a token; offsets count characters from the prompt on, half a character begins where it is."""
    tokens = ids("a🙂b")
    one = aligned()
    score = TokenScore(-1.0, ((ids("b")[0], -0.5),))
    told = one.push("a🙂b", tokens, [score] * len(tokens))
    answer = TextLogprobs(VOCABULARY, "prompt").output(told)
    assert set(answer) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert answer["tokens"][0] == "a"
    assert answer["tokens"][1].startswith("bytes:\\xf0")
    assert answer["text_offset"] == [6, *[7] * (len(tokens) - 2), 8]
    assert answer["top_logprobs"][0] == {"b": -0.5, "a": -1.0}
    assert answer["top_logprobs"][-1] == {"b": -0.5}


def test_text_form_in_pieces_is_that_of_the_whole() -> None:
    """Pieces of a stream join to what an answer in one has."""
    tokens = ids("the tenant 🙂 holds")
    scored = aligned().push("the tenant 🙂 holds", tokens, scores(tokens))
    whole = TextLogprobs(VOCABULARY, "x").output(scored)
    pieces = TextLogprobs(VOCABULARY, "x")
    parts = [pieces.output([one]) for one in scored]
    assert {name: [value for part in parts for value in part[name]] for name in whole} == whole


def test_text_form_of_a_prompt() -> None:
    """The first token has no score; a special token that the tokenizer added takes no place in the text."""
    tokens = [END, *ids("the tenant")]
    scored = [Scored(tokens[0], None), *(Scored(token, TokenScore(-1.0)) for token in tokens[1:])]
    answer = TextLogprobs(VOCABULARY, "the tenant").prompt(scored)
    assert answer["token_logprobs"][0] is answer["top_logprobs"][0] is None
    assert answer["text_offset"][:2] == [0, 0]
    for name, offset in list(zip(answer["tokens"], answer["text_offset"], strict=True))[1:]:
        assert "the tenant"[offset:].startswith(name)
    written = TextLogprobs(VOCABULARY, "<|im_end|>the tenant").prompt(scored)
    assert written["text_offset"][:2] == [0, len("<|im_end|>")]
