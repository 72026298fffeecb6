"""`POST /v1/completions`: one or several prompts, each a text or token ids, one choice each."""

from gateway.api.chat import authenticate, head
from gateway.api.errors import BadRequest
from gateway.api.exchange import Exchange, Watching
from gateway.api.respond import collect, stream
from gateway.api.running import Job, find_model, running, sampling_of, text_tokens
from gateway.api.schemas import CompletionRequest, parse_completion
from gateway.api.shapes import CompletionShape
from gateway.workers.model import Model


async def completions(exchange: Exchange) -> None:
    """Answer one completion request."""
    web = exchange.web
    grant = await authenticate(exchange, scope="generate")
    request = parse_completion(await exchange.body())
    async with Watching(exchange):
        model = find_model(web, grant, request.model)
        job = Job(
            model=model,
            prompts=await _tokens(model, request),
            sampling=sampling_of(request, request.limit),
            session=request.session,
            request_id=exchange.request_id,
            field="prompt",
        )
        shape = CompletionShape(head(exchange, model, "cmpl"), request.include_usage)
        async with running(web, grant, job) as started:
            exchange.ends(started.runs)
            if request.stream:
                await stream(exchange, started, shape, include_usage=request.include_usage)
            else:
                await collect(exchange, started, shape)


async def _tokens(model: Model, request: CompletionRequest) -> list[list[int]]:
    prompts = request.prompts()
    if isinstance(prompts[0], str):
        return await text_tokens(model, [str(text) for text in prompts], special=True, field="prompt")
    lists = [tokens for tokens in prompts if isinstance(tokens, list)]
    if any(token >= model.vocab_size for tokens in lists for token in tokens):
        raise BadRequest(
            f"`prompt` has a token id outside the model's vocabulary of {model.vocab_size}", param="prompt"
        )
    return lists
