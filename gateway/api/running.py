"""From a parsed request to running generations: find the model, admit, route. The same for HTTP and websockets.

jobs.py has what lies between: what a request asks of a worker.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from engine.protocol import pb
from gateway.admission.admit import Permit
from gateway.api.auth import check_model
from gateway.api.errors import BadRequest, ContextTooLong, ModelNotFound, Overloaded
from gateway.api.jobs import MAX_SCORES, Job
from gateway.api.schemas import ChatRequest
from gateway.api.tools.plan import ToolPlan, plan_of
from gateway.routing.choose import affinity
from gateway.routing.route import Routed
from gateway.web import Web
from gateway.workers.errors import Refused, WorkerError
from gateway.workers.model import (
    INLINE_CHARACTERS,
    Model,
    NoChatTemplate,
    TemplateRefused,
    TextTooLong,
    Tools,
    Turns,
)
from tenants.contracts import KeyGrant

ASSUMED_OUTPUT = 512  # tokens reserved of `tpm` where the client names no maximum; settled by what was used
_PRIORITY = {
    "standard": pb.PRIORITY_STANDARD,
    "interactive": pb.PRIORITY_INTERACTIVE,
    "batch": pb.PRIORITY_BATCH,
}


@dataclass(frozen=True, slots=True)
class Running:
    """An admitted job on its workers: one run a prompt."""

    permit: Permit
    runs: list[Routed]
    num_outputs: int  # of each run
    names: Mapping[str, str]  # as the job has them
    start: Callable[[], Routed | None]  # starts the next prompt; None: all have been started
    plan: ToolPlan | None = None  # as the job has it

    @property
    def pending(self) -> bool:
        """Whether more events are there already."""
        return any(run.pending for run in self.runs)

    def named(self, error: WorkerError) -> WorkerError:
        """Return a worker's refusal with the name that the client gave the field; any other error as it is."""
        if not isinstance(error, Refused) or error.field not in self.names:
            return error
        if error.field == "grammar" and self.plan is not None and self.plan.functions:
            field, message = self.plan.explained(str(error))
            return Refused(error.code, message, field)
        return Refused(error.code, str(error), self.names[error.field])


def find_model(web: Web, grant: KeyGrant, name: str, session: str = "") -> Model:
    """Return the model of that name; of several with one name the one that keeps the tenant's session, if there is one.

    Raises:
        ModelNotFound: it doesn't exist, or not for this key.
        Overloaded: it exists, and none of its workers has answered yet; or no worker at all is known, as in the first
            moments of a process, so that nobody can say what exists.
    """
    check_model(grant, name)
    model = web.registry.model(name, affinity(grant.tenant_id, session))
    if model is not None:
        return model
    if name in web.registry.names():
        raise Overloaded(f"The model `{name[:200]}` is starting. Try again in a moment.")
    if not web.registry.names():
        raise Overloaded("No engine worker is up. Try again in a moment.")
    raise ModelNotFound(name)


async def chat_tokens(model: Model, request: ChatRequest) -> list[int]:
    """Return the token ids of a conversation.

    Raises:
        BadRequest: the model has no chat form, or its template rejects the messages.
        ContextTooLong: the text can't fit.
    """
    turns, tools = await _shown(model, request)
    with _template_refusals(model):
        return await model.chat_tokens(turns, tools)


async def chat_text(model: Model, request: ChatRequest, *, ready: bool) -> str:
    """Return the prompt text of a conversation; `ready`: for the assistant's turn. Raises as `chat_tokens`."""
    turns, tools = await _shown(model, request)
    with _template_refusals(model):
        return await model.render(turns, tools, ready=ready)


async def _shown(model: Model, request: ChatRequest) -> tuple[Turns, Tools | None]:
    """Return the messages and the tools that the model's template is to show."""
    plan = plan_of(request, model)
    if plan is None:
        return request.conversation(), None
    calls = [call for message in request.messages for call in message.tool_calls or ()]
    if sum(len(call.function.arguments) for call in calls) > INLINE_CHARACTERS:  # they are read
        return await asyncio.to_thread(plan.turns, request.messages), plan.template_tools
    return plan.turns(request.messages), plan.template_tools


@contextmanager
def _template_refusals(model: Model) -> Iterator[None]:
    try:
        yield
    except NoChatTemplate as error:
        raise BadRequest(str(error), param="model", code="no_chat_template") from error
    except TemplateRefused as error:
        raise BadRequest(str(error), param="messages") from error
    except TextTooLong as error:
        raise _too_long(model, error, "messages") from error


async def text_tokens(model: Model, texts: Sequence[str], *, field: str) -> list[list[int]]:
    """Return the token ids of each text. Raises ContextTooLong before it tokenises what can't fit."""
    try:
        return await model.text_tokens(texts)
    except TextTooLong as error:
        raise _too_long(model, error, field) from error


def _too_long(model: Model, error: TextTooLong, field: str) -> ContextTooLong:
    return ContextTooLong(
        f"This model's maximum context length is {model.max_context} tokens; `{field}` has {error.num_characters} "
        "characters, which is more. Shorten it.",
        param=field,
    )


@asynccontextmanager
async def running(web: Web, grant: KeyGrant, job: Job) -> AsyncIterator[Running]:
    """Admit the job and start it; at the end cancel what still runs and settle what was reserved.

    Raises:
        BadRequest, ContextTooLong: the job can't run on this model, or not under the tenant's policy.
        RateLimited: a limit is used up.
        Overloaded, WorkerUnavailable: this process is stopping, or no worker can be reached.
    """
    if web.drain.draining:
        raise Overloaded("The server is restarting. Try again.")
    _check_length(job)
    _check_output(job, grant)
    _check_scores(job, grant)
    _check_tier(job, grant)
    num_prompt = sum(len(prompt) for prompt in job.prompts)
    expected = 0 if job.embed else _expected_output(job, grant)
    tokens = num_prompt + len(job.prompts) * expected
    permit = await web.admission.admit(grant, prompt_tokens=num_prompt, tokens=tokens, now=time.monotonic())
    runs: list[Routed] = []

    def start() -> Routed | None:
        number = len(runs)
        if number == len(job.prompts):
            return None
        watch = web.metrics.watch(grant.tenant_slug, job.model.name)
        run = Routed(web.registry, job.model, _submit(grant, job, number), watch)
        runs.append(run)
        web.drain.enter(run)
        return run

    try:
        for _ in range(job.window or len(job.prompts)):
            start()
        started = Running(permit, runs, job.num_outputs, job.names, start, job.plan)
        try:
            yield started
        except Refused as refused:
            if (named := started.named(refused)) is refused:
                raise
            raise named from refused
    finally:
        for run in runs:
            run.cancel()
            web.drain.leave(run)
        permit.settle(sum(run.used_tokens + expected * run.uncounted for run in runs))


def _expected_output(job: Job, grant: KeyGrant) -> int:
    """Return how many tokens of output a prompt is reckoned with, until it is known how many there were."""
    return job.num_candidates * min(job.sampling.max_tokens or ASSUMED_OUTPUT, grant.policy.max_output)


def _submit(grant: KeyGrant, job: Job, number: int) -> pb.Submit:
    return pb.Submit(
        request_id=job.request_id if number == 0 else f"{job.request_id}-{number}",
        tenant=grant.tenant_id,
        project=grant.project_id,
        key=grant.key_id,
        namespace=grant.namespace,
        session=job.session,
        session_seconds=job.session_seconds,
        priority=_PRIORITY[_class_of(grant, job.tier)],
        token_ids=job.prompts[number],
        sampling=job.sampling,
        policy_version=grant.policy.version,
        n=job.num_outputs,
        best_of=0 if job.beams is not None or job.num_candidates == job.num_outputs else job.num_candidates,
        beam_search=job.beams,
        embed=job.embed,
    )


def _class_of(grant: KeyGrant, tier: str) -> str:
    """Return the class of service under which a tenant's request of a tier runs."""
    if tier == "flex":
        return "batch"
    return "interactive" if tier == "priority" else grant.policy.priority


def _check_tier(job: Job, grant: KeyGrant) -> None:
    if job.tier == "priority" and grant.policy.priority != "interactive":
        raise BadRequest(
            f"`service_tier` is `priority`, which needs the class interactive, and yours is {grant.policy.priority}: "
            "leave it out, or send `flex`",
            param="service_tier",
        )


def _check_length(job: Job) -> None:
    limit, asked = job.model.max_context, job.sampling.max_tokens
    least = 0 if job.embed else 1
    for prompt in job.prompts:
        if not prompt:
            raise BadRequest(f"`{job.field}` is empty: there is nothing to go on from", param=job.field)
        if len(prompt) + max(asked, least) > limit:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{len(prompt) + asked} tokens ({len(prompt)} in `{job.field}`, {asked} in the completion). "
                "Shorten one of them.",
                param=job.field,
            )


def _check_output(job: Job, grant: KeyGrant) -> None:
    """Refuse an output that is never allowed, rather than cut it behind the client's back."""
    limit, asked = grant.policy.max_output, job.sampling.max_tokens
    if job.limit_field and asked > limit:
        raise BadRequest(
            f"`{job.limit_field}` is {asked}, and your limit is {limit} tokens of output: ask for at most {limit}, or "
            "leave it out and get as many as are allowed",
            param=job.limit_field,
            code="max_output_exceeded",
        )


def _check_scores(job: Job, grant: KeyGrant) -> None:
    """Refuse more log-probabilities than are held until an answer is whole, were its outputs as long as they may be."""
    if not job.sampling.HasField("logprobs"):
        return
    limit = min(job.sampling.max_tokens or grant.policy.max_output, grant.policy.max_output)
    num_tokens = sum(min(limit, job.model.max_context - len(prompt)) for prompt in job.prompts)
    count = job.num_candidates * num_tokens * (1 + job.sampling.logprobs)
    if count > MAX_SCORES:
        field = job.names.get("logprobs", "logprobs")
        raise BadRequest(
            f"The output could have {count} log-probabilities, and an answer holds {MAX_SCORES}: limit its tokens, ask "
            f"for fewer outputs, or lower `{field}` or leave it out",
            param=field,
        )
