"""`POST /v1/embeddings`: a vector of unit length for each input, made of the model's last hidden states.

Each input is a run of its own, WINDOW of them on their way at once. What they give is kept until the last has ended, so
that a failure is still a status, and then written piece by piece.
"""

import base64
import math
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.protocol import pb
from gateway.api.chat import authenticate, received
from gateway.api.decode import Off, Reader
from gateway.api.errors import BadRequest, WorkerFailed
from gateway.api.exchange import Exchange, Watching
from gateway.api.idempotency import once
from gateway.api.jobs import Job
from gateway.api.prompt_tokens import token_lists
from gateway.api.prompts import Prompt, entries
from gateway.api.running import Running, find_model, running
from gateway.api.sampling import MAX_COUNT
from gateway.routing.route import Routed
from gateway.workers.generation import Finished
from gateway.workers.model import Model
from tenants.contracts import KeyGrant

MAX_INPUTS = 2048
WINDOW = 32
FLUSH_BYTES = 64 << 10  # of an answer, written at once

EMBEDDING_OFF: Off = {"truncate_prompt_tokens": ()}


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`. `input`: a text, texts, token ids, or lists of token ids. `user` changes nothing."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    user: str | None = None

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        if "" in (self.input if isinstance(self.input, list) else [self.input]):
            raise BadRequest("`input` has an empty text, which has no embedding: leave it out", param="input")


_READER = Reader(EmbeddingRequest, EMBEDDING_OFF)


async def embeddings(exchange: Exchange) -> None:
    """Answer one request."""
    grant = await authenticate(exchange, scope="generate")
    request, entry = await received(exchange, grant, _READER.read)
    async with Watching(exchange), once(exchange, entry) as due:
        if due:
            await _serve(exchange, grant, request)


async def _serve(exchange: Exchange, grant: KeyGrant, request: EmbeddingRequest) -> None:
    model = find_model(exchange.web, grant, request.model)
    size = _size(request, model)
    prompts = await token_lists(model, entries(request.input, field="input", most=MAX_INPUTS), field="input")
    async with running(exchange.web, grant, _job(exchange, model, prompts)) as started:
        vectors, num_tokens = await _collect(exchange, started, size)
    exchange.noted |= {"model": model.name, "prompt_tokens": num_tokens}
    exchange.headers += started.permit.headers(time.monotonic())
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = {"model": model.name, "usage": usage}
    await _write(exchange, _pieces(vectors, rest, is_base64=request.encoding_format == "base64"))


def unit(vector: Sequence[float], size: int) -> "array[float]":
    """Return the first `size` numbers of a vector, scaled to unit length, as float32.

    Raises:
        WorkerFailed: they have no direction.
    """
    cut = vector[:size]
    length = math.hypot(*cut)
    if not 0 < length < math.inf:
        raise WorkerFailed("The worker returned an embedding without a direction. Try another input.")
    return array("f", [number / length for number in cut])


def _size(request: EmbeddingRequest, model: Model) -> int:
    """Return how many numbers each vector has; fewer than the model gives are its first ones, as at OpenAI."""
    most = model.embedding_size
    if not most:
        raise BadRequest(
            f"The model `{model.name}` makes no embeddings: name another one", param="model", code="no_embeddings"
        )
    if request.dimensions is not None and request.dimensions > most:
        raise BadRequest(
            f"`dimensions` is {request.dimensions}, and the model's embeddings have {most} numbers: ask for at most "
            f"{most}, or leave it out",
            param="dimensions",
        )
    return request.dimensions or most


def _job(exchange: Exchange, model: Model, prompts: Sequence[Sequence[int]]) -> Job:
    return Job(
        model=model,
        prompts=prompts,
        sampling=pb.Sampling(top_p=1.0),
        embed=True,
        window=WINDOW,
        session="",
        request_id=exchange.request_id,
        field="input",
        limit_field="",
        names={"prompt": "input", "embed": "model"},
    )


async def _collect(exchange: Exchange, started: Running, size: int) -> "tuple[list[array[float]], int]":
    """Return the vectors and the tokens of all inputs. Raises ApiError and WorkerError where any of them failed."""
    exchange.ends(started.runs)
    vectors, num_tokens = [], 0
    for run in started.runs:  # which grows
        end = await _end_of(run)
        vectors.append(unit(end.embedding, size))
        num_tokens += end.prompt_tokens
        if (following := started.start()) is not None:
            exchange.ends([following])
    return vectors, num_tokens


async def _end_of(run: Routed) -> Finished:
    while not isinstance(event := await run.next(), Finished):
        pass
    return event


def _pieces(vectors: "Sequence[array[float]]", rest: dict[str, Any], *, is_base64: bool) -> Iterator[bytes]:
    """Yield the answer's JSON: a piece a vector, since one that holds all of them would be long in the making."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        told = _base64(vector) if is_base64 else vector.tolist()
        entry = {"object": "embedding", "index": index, "embedding": told}
        yield (b"," if index else b"") + msgspec.json.encode(entry)
    yield b"]," + msgspec.json.encode(rest)[1:]


def _base64(vector: "array[float]") -> str:
    """Return float32 numbers in little-endian order, which is what SDKs decode."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


async def _write(exchange: Exchange, pieces: Iterator[bytes]) -> None:
    await exchange.start(200, [(b"content-type", b"application/json")])
    waiting = b""
    for piece in pieces:
        waiting += piece
        if len(waiting) >= FLUSH_BYTES:
            await exchange.write(waiting)
            waiting = b""
    await exchange.write(waiting)
    await exchange.end()
