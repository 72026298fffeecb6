"""What is stored of a response: it comes back as it was, however it ended."""

import time

import pytest

from gateway.api.responses.document import MOST_BYTES, Document, Ending, Step, decoded, encoded
from gateway.api.responses.scribe import joined
from tenants.contracts import ResponseRecord, ResponseStatusName

HEAD = {"id": "resp_1", "created_at": 5}
SCORE = {"token": "a" * 1000, "logprob": -1.0}


def record(document: Document, status: ResponseStatusName = "completed") -> ResponseRecord:
    """Return a document as it is stored."""
    data = encoded(document)
    assert data is not None
    return ResponseRecord(id="resp_1", status=status, background=True, created_at=time.time(), document=data)


def test_a_document_comes_back() -> None:
    """Texts of any kind, scores and the end."""
    document = Document(
        head=HEAD,
        input=[{"id": "i", "text": "\0 🦜"}],
        steps=(Step("admitted"), Step("text", "a", "", (SCORE,)), Step("call", "f", "c"), Step("arguments", "{}")),
        ending=Ending(status="incomplete", at=6, reason="max_output_tokens"),
    )
    assert decoded(record(document)) == document


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_row_says_the_end_that_its_writer_could_not(status: ResponseStatusName) -> None:
    """A process that died said nothing, and one that was told to stop neither; what there was stays."""
    document = decoded(record(Document(head=HEAD, input=[], steps=(Step("text", "a"),)), status))
    assert document.ending is not None
    assert (document.ending.status, document.steps) == (status, (Step("text", "a"),))
    assert (document.ending.error is not None) == (status == "failed")


def test_what_runs_has_no_end() -> None:
    """It may go on."""
    assert decoded(record(Document(head=HEAD, input=[]), "in_progress")).ending is None


def test_log_probabilities_go_before_the_text_does() -> None:
    """Where they would make a document too large, the text is stored without them; a text too large is not stored."""
    scored = tuple(Step("text", "a", "", (SCORE,)) for _ in range(MOST_BYTES // 1000))
    data = encoded(Document(head=HEAD, input=[], steps=scored))
    assert data is not None
    assert len(data) < MOST_BYTES
    assert b"logprob" not in data
    assert encoded(Document(head=HEAD, input=[], steps=(Step("text", "a" * MOST_BYTES),))) is None


def test_steps_that_nobody_streams_again_are_joined() -> None:
    """Of one kind in a row, with their scores; calls stay apart."""
    score = {"token": "a"}
    steps = [
        Step("admitted"),
        Step("text", "a", "", (score,)),
        Step("text", "b", "", (score,)),
        Step("call", "f", "1"),
        Step("arguments", "{"),
        Step("arguments", "}"),
        Step("call", "f", "2"),
        Step("call", "f", "3"),
    ]
    assert joined(steps) == (
        Step("admitted"),
        Step("text", "ab", "", (score, score)),
        Step("call", "f", "1"),
        Step("arguments", "{}"),
        Step("call", "f", "2"),
        Step("call", "f", "3"),
    )
