"""What a request asks of a worker: the one form in which chat, completions, responses and websockets are admitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.protocol import pb
from gateway.api.formats import Asked
from gateway.api.sampling import Generating, Sampling
from gateway.api.schemas import ChatRequest, CompletionRequest
from gateway.api.tools.plan import ToolPlan, plan_of
from gateway.workers.model import Model

MAX_SCORES = 1 << 22  # log-probabilities of an answer, of its outputs and of its echoed prompts: each is some 30 bytes
_NAMES = {"prompt_logprobs": "echo", "embed": "echo"}  # of the client's fields, by the worker's


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be generated: one prompt a run, one way of sampling for all."""

    model: Model
    prompts: Sequence[Sequence[int]]  # token ids
    sampling: pb.Sampling
    num_outputs: int = 1  # that come back of each prompt
    num_candidates: int = 1  # that are generated of each prompt
    beams: pb.BeamSearch | None = None
    embed: bool = False  # generate nothing: the end of each run has its prompt's embedding
    window: int = 0  # runs on their way at once, the next one starts when it is told to; 0: all
    session: str  # of the tenant; empty: none
    session_seconds: int = 0  # that it is kept after this turn; 0: as long as the worker keeps any
    tier: str = ""  # "default", "flex" or "priority"; empty: nobody asked, which is the default
    request_id: str
    field: str  # of the client's request that holds the prompt
    limit_field: str  # and the one that says `sampling.max_tokens`; empty: nobody asked for it
    names: Mapping[str, str]  # the client's names of fields, by the worker's, where they differ
    plan: ToolPlan | None = None  # how tools are served; None: the request has nothing to do with them


def job_of(
    request: ChatRequest | CompletionRequest,
    model: Model,
    *,
    prompts: Sequence[Sequence[int]],
    request_id: str,
    field: str,
    asked: Asked | None = None,
) -> Job:
    """Return what a request asks for.

    Args:
        request: as the client sent it.
        model: the one that it names.
        prompts: token ids.
        request_id: of the exchange or the response.
        field: of the client's request that holds the prompts.
        asked: what the output must be, where that is not the request's own format.

    Raises:
        BadRequest: what the output must be is too long, or can't be read.
    """
    asked = asked or request.asked_format()
    sampling = sampling_of(request, request.limit)
    plan = plan_of(request, model) if isinstance(request, ChatRequest) else None
    if plan is not None:
        asked = plan.asked(asked)
        sampling.shown_token_ids.extend(plan.shown_tokens)
    if asked is not None:
        sampling.grammar.CopyFrom(asked.grammar)
    echoes = isinstance(request, CompletionRequest) and bool(request.echo)
    only_echoes = isinstance(request, CompletionRequest) and request.only_echoes
    if request.top_scores is not None and not only_echoes:
        sampling.logprobs = request.top_scores
    if request.top_scores is not None and echoes:
        sampling.prompt_logprobs = request.top_scores
    return Job(
        model=model,
        prompts=prompts,
        sampling=sampling,
        num_outputs=request.num_outputs,
        num_candidates=request.num_candidates,
        beams=_beams_of(request),
        embed=only_echoes,  # a prompt is computed and nothing generated
        session=request.session,
        session_seconds=request.session_ttl or 0,
        tier=request.tier,
        request_id=request_id,
        field=field,
        limit_field=request.limit_field,
        names=_NAMES
        | {"prompt": field, "logprobs": request.scores_field}
        | ({} if asked is None else {"grammar": asked.field}),
        plan=plan,
    )


def sampling_of(request: Sampling, limit: int) -> pb.Sampling:
    """Return the worker's form of how a request is sampled; OpenAI's defaults are temperature 1 and top_p 1."""
    sampling = pb.Sampling(
        max_tokens=limit,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        stop=request.stops,
        stop_token_ids=request.stop_token_ids or (),
        ignore_eos=bool(request.ignore_eos),
        min_p=request.min_p or 0.0,
        min_tokens=request.min_tokens or 0,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 0.0,
        logit_bias=request.logit_bias,
    )
    if request.seed is not None:
        sampling.seed = request.seed & (2**64 - 1)
    return sampling


def _beams_of(request: Generating) -> pb.BeamSearch | None:
    if not request.num_beams:
        return None
    return pb.BeamSearch(
        width=request.num_beams,
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        early_stopping=bool(request.early_stopping),
    )
