"""`POST /v1/completions`: one or several prompts, each a text or token ids, `n` choices each."""

from gateway.api.chat import authenticate, head
from gateway.api.errors import BadRequest
from gateway.api.exchange import Exchange, Watching
from gateway.api.respond import answer
from gateway.api.running import find_model, job_of, running, text_tokens
from gateway.api.schemas import CompletionRequest, parse_completion
from gateway.api.shapes import CompletionShape
from gateway.workers.model import Model


async def completions(exchange: Exchange) -> None:
    """Answer one completion request."""
    grant = await authenticate(exchange, scope="generate")
    request = parse_completion(await exchange.body())
    async with Watching(exchange):
        model = find_model(exchange.web, grant, request.model, request.session)
        prompts = await _tokens(model, request)
        job = job_of(request, model, prompts=prompts, request_id=exchange.request_id, field="prompt")
        shape = CompletionShape(head(exchange, model, "cmpl"), request.include_usage)
        async with running(exchange.web, grant, job) as started:
            await answer(exchange, started, shape, streamed=bool(request.stream))


async def _tokens(model: Model, request: CompletionRequest) -> list[list[int]]:
    prompts = request.prompts()
    if isinstance(prompts[0], str):
        return await text_tokens(model, [str(text) for text in prompts], field="prompt")
    lists = [tokens for tokens in prompts if isinstance(tokens, list)]
    if any(token >= model.vocab_size for tokens in lists for token in tokens):
        raise BadRequest(
            f"`prompt` has a token id outside the model's vocabulary of {model.vocab_size}", param="prompt"
        )
    return lists
