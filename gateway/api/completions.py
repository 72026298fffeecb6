"""`POST /v1/completions`: one or several prompts, each a text or token ids, `n` choices each."""

from collections.abc import Sequence

from gateway.api.chat import authenticate, head, received
from gateway.api.errors import BadRequest
from gateway.api.exchange import Exchange, Watching
from gateway.api.idempotency import once
from gateway.api.jobs import MAX_SCORES, job_of
from gateway.api.prompt_tokens import token_lists
from gateway.api.reading import readings
from gateway.api.respond import answer
from gateway.api.running import find_model, running
from gateway.api.schemas import CompletionRequest, parse_completion
from gateway.api.text_shape import CompletionShape, Echo, Prompt
from gateway.workers.model import Model
from tenants.contracts import KeyGrant


async def completions(exchange: Exchange) -> None:
    """Answer one completion request."""
    grant = await authenticate(exchange, scope="generate")
    request, entry = await received(exchange, grant, parse_completion)
    async with Watching(exchange), once(exchange, entry) as due:
        if due:
            await _serve(exchange, grant, request)


async def _serve(exchange: Exchange, grant: KeyGrant, request: CompletionRequest) -> None:
    model = find_model(exchange.web, grant, request.model, request.session)
    prompts = await token_lists(model, request.prompts(), field="prompt")
    _check_echo(request, prompts)
    job = job_of(request, model, prompts=prompts, request_id=exchange.request_id, field="prompt")
    response, echo = head(exchange, model, request, "cmpl"), _echo(model, request, prompts)
    async with running(exchange.web, grant, job) as started:
        shape = CompletionShape(response, model.vocabulary, readings(request, model), echo)
        await answer(exchange, started, shape, streamed=bool(request.stream))


def _check_echo(request: CompletionRequest, prompts: Sequence[Sequence[int]]) -> None:
    """Raise BadRequest where the scores of echoed prompts, which each choice repeats, are more than one answer has."""
    if not request.echo or request.logprobs is None:
        return
    count = sum(map(len, prompts)) * request.num_outputs * (1 + request.logprobs)
    if count > MAX_SCORES:
        raise BadRequest(
            f"The echo would have {count} log-probabilities, and an answer holds {MAX_SCORES}: lower `n` or "
            "`logprobs`, or send fewer prompts",
            param="logprobs",
        )


def _echo(model: Model, request: CompletionRequest, prompts: Sequence[Sequence[int]]) -> Echo | None:
    """Return what the answer says of its prompts; a text is echoed as the client wrote it."""
    if not request.echo and request.logprobs is None:
        return None
    texts = [text if isinstance(text, str) else model.text(text) for text in request.prompts()]
    told = [Prompt(text, tokens) for text, tokens in zip(texts, prompts, strict=True)]
    return Echo(prompts=told, shown=bool(request.echo), alone=request.only_echoes)
