"""Which requests can be served at all: pure checks of one request against model, policy and pool."""

from dataclasses import dataclass

from engine.policy import TenantPolicy
from engine.request import BeamParams, GenerationRequest, RefusalCode
from engine.scheduler.outputs import Refusal
from engine.scheduler.sampling_bounds import changes_choice, check_sampling

MAX_OUTPUTS = 128  # of one request
MAX_BEAMS = 64  # candidates of a step grow with their square
OPEN_SEARCH_TOKENS = 1024  # of each beam of a search without max_tokens: all of it is reserved from the start
LEAST_WINDOW_TOKENS = 32  # of a streamed sequence, on the device: what is computed in a step at least
MAX_PROMPT_SCORES = 1 << 17  # log-probabilities of a prompt's tokens and of the likeliest ones in their places
MAX_LENGTH_PENALTY = 10.0  # either way: an exponent beyond it says nothing, and overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What model and pool allow to anyone."""

    vocab_size: int
    max_context: int  # tokens
    num_blocks: int
    block_size: int  # tokens
    block_bytes: int
    num_slabs: int = 0  # blocks of host memory that sequences may be streamed from; 0: none are

    def hard_blocks(self, policy: TenantPolicy) -> int:
        """Return the tenant's ceiling in whole blocks of this pool."""
        return min(policy.kv_hard_bytes // self.block_bytes, self.num_blocks)

    def most_blocks(self, policy: TenantPolicy) -> int:
        """Return the tenant's ceiling, were all of the fleet's to be granted to this pool."""
        return min(max(policy.kv_hard_bytes, policy.fleet_hard_bytes) // self.block_bytes, self.num_blocks)

    def streamed_blocks(self, policy: TenantPolicy) -> int:
        """Return the blocks that one sequence of the tenant may have in host memory alone, beside its ceiling."""
        if self.most_blocks(policy) < window_blocks(self.block_size):
            return 0
        return min(policy.host_bytes // self.block_bytes, self.num_slabs)

    def soft_blocks(self, policy: TenantPolicy) -> int:
        """Return the tenant's guarantee in whole blocks of this pool."""
        return min(policy.kv_soft_bytes // self.block_bytes, self.num_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


def window_blocks(block_size: int) -> int:
    """Return the blocks that a streamed sequence has on the device at least: for a chunk, behind an unfinished one."""
    return -(-LEAST_WINDOW_TOKENS // block_size) + 1


def may_stream(request: GenerationRequest) -> bool:
    """Say whether a request's blocks may be in host memory while it runs: they need keys, and no second output."""
    return request.n == 1 and request.beams is None and bool(request.namespace)


def beam_width(request: GenerationRequest) -> int:
    """Return how many sequences run for one output of the request: 1 unless it is searched for."""
    return 1 if request.beams is None else request.beams.width


def most_blocks(num_prompt: int, num_output: int, width: int, block_size: int) -> int:
    """Return the blocks that a prompt and `width` outputs of it need at most: full blocks of the prompt are shared."""
    shared = num_prompt // block_size
    return shared + width * (-(-(num_prompt + num_output) // block_size) - shared)


def check_form(request: GenerationRequest, limits: Limits, max_running: int) -> Refusal | None:
    """Return what is wrong with the request itself, whoever sent it; `max_running` sequences fit into a step."""
    prompt = request.prompt
    if not prompt:
        return Refusal(RefusalCode.INVALID, "The prompt is empty: send at least one token.", "prompt")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        message = f"Token id {wrong} is not in the model's vocabulary: ids go from 0 to {limits.vocab_size - 1}."
        return Refusal(RefusalCode.INVALID, message, "prompt")
    problem = check_sampling(request.sampling, limits.vocab_size)
    if problem is not None:
        return problem
    if not 1 <= request.n <= MAX_OUTPUTS:
        return Refusal(RefusalCode.INVALID, f"n must be from 1 to {MAX_OUTPUTS}.", "n")
    num_scores = len(prompt) * (1 + request.sampling.prompt_logprobs)
    if num_scores > MAX_PROMPT_SCORES:
        message = f"The prompt comes to {num_scores} log-probabilities; at most {MAX_PROMPT_SCORES} are told. "
        return Refusal(RefusalCode.INVALID, message + "Ask for fewer at each token, or shorten it.", "prompt_logprobs")
    if request.embed and (request.n > 1 or request.beams is not None):
        return Refusal(RefusalCode.INVALID, "A request to embed has one result: leave n and beams out.", "n")
    return None if request.beams is None else _check_beams(request, request.beams, limits, max_running)


def _check_beams(request: GenerationRequest, beams: BeamParams, limits: Limits, max_running: int) -> Refusal | None:
    most = min(MAX_BEAMS, max_running, limits.vocab_size // 2)
    if not 2 <= beams.width <= most:
        message = f"beam_width must be from 2 to {most} on this worker; leave it out where one beam is enough."
        return Refusal(RefusalCode.INVALID, message, "beam_width")
    if request.n > beams.width:
        message = f"n is {request.n}, but a search with beam_width {beams.width} has {beams.width} outputs at most."
        return Refusal(RefusalCode.INVALID, message, "n")
    if not abs(beams.length_penalty) <= MAX_LENGTH_PENALTY:  # nan too
        message = f"length_penalty must be a number from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}."
        return Refusal(RefusalCode.INVALID, message, "length_penalty")
    field = changes_choice(request.sampling)
    if field:
        message = f"A beam search samples nothing that {field} could change: leave one of the two out."
        return Refusal(RefusalCode.INVALID, message, field)
    return None


def size(request: GenerationRequest, policy: TenantPolicy, limits: Limits) -> int | Refusal:
    """Return how many tokens the request may generate under its tenant's policy, or why it never can.

    An explicit `max_tokens` is cut to the policy's `max_output_tokens` and must fit context and hard limit with the
    prompt; without one, the request gets all that context, policy and hard limit leave, a search at most so much. The
    hard limit is the fleet's: a request waits for this worker's grant of it, which follows demand. What exceeds it must
    fit the tenant's ceiling in host memory, where the request may be streamed from there. A request to embed generates
    nothing: its prompt alone must fit.
    """
    if request.embed:
        return _size_prompt(request, policy, limits)
    num_prompt, asked = len(request.prompt), request.sampling.max_tokens
    context = min(limits.max_context, policy.max_context_tokens)
    if num_prompt + max(1, asked) > context:
        return _context_too_long(num_prompt, asked, context)
    if policy.max_output_tokens < 1:
        return Refusal(RefusalCode.CONTEXT_TOO_LONG, "The tenant's policy allows 0 output tokens.", "max_tokens")
    width, most = beam_width(request), limits.most_blocks(policy)
    if may_stream(request):
        most += limits.streamed_blocks(policy)
    places = max(policy.max_running, policy.fleet_max_running)
    if 1 <= places < width:  # beams run together or not at all
        message = (
            f"A search with beam_width {width} runs {width} sequences at once, but the tenant's max_running"
            f" is {places}. Lower beam_width or ask for a higher limit."
        )
        return Refusal(RefusalCode.INVALID, message, "beam_width")
    open_end = context - num_prompt if request.beams is None else min(context - num_prompt, OPEN_SEARCH_TOKENS)
    wanted = min(asked or open_end, policy.max_output_tokens)
    needed = most_blocks(num_prompt, wanted if asked else 1, width, limits.block_size)
    if needed > most:
        return _kv_limit(request, policy, limits, needed)
    shared = num_prompt // limits.block_size
    return min(wanted, (shared + (most - shared) // width) * limits.block_size - num_prompt)


def _size_prompt(request: GenerationRequest, policy: TenantPolicy, limits: Limits) -> int | Refusal:
    """Return 0, the output tokens of a request to embed, or why its prompt can never be computed."""
    num_prompt, context = len(request.prompt), min(limits.max_context, policy.max_context_tokens)
    if num_prompt > context:
        message = f"The prompt has {num_prompt} tokens, but the context limit is {context} tokens. Shorten it."
        return Refusal(RefusalCode.CONTEXT_TOO_LONG, message, "prompt")
    most = limits.most_blocks(policy) + (limits.streamed_blocks(policy) if may_stream(request) else 0)
    needed = limits.blocks_for(num_prompt)
    return 0 if needed <= most else _kv_limit(request, policy, limits, needed)


def _context_too_long(num_prompt: int, asked: int, context: int) -> Refusal:
    output = f"{asked} output tokens" if asked else "at least 1 output token"
    message = (
        f"The request needs {num_prompt + max(1, asked)} tokens ({num_prompt} in the prompt and {output}), but the"
        f" context limit is {context} tokens. Shorten the prompt{' or lower max_tokens' if asked else ''}."
    )
    return Refusal(RefusalCode.CONTEXT_TOO_LONG, message, "max_tokens" if num_prompt < context else "prompt")


def _kv_limit(request: GenerationRequest, policy: TenantPolicy, limits: Limits, needed: int) -> Refusal:
    num_prompt, asked = len(request.prompt), request.sampling.max_tokens
    pool_bytes = limits.num_blocks * limits.block_bytes
    hard_bytes = max(policy.kv_hard_bytes, policy.fleet_hard_bytes)
    if hard_bytes <= pool_bytes:
        limit = f"the tenant's hard limit (kv_hard_bytes) is {hard_bytes} bytes"
    else:
        limit = f"the worker's KV memory is {pool_bytes} bytes in all"
    hosted = limits.streamed_blocks(policy) * limits.block_bytes if may_stream(request) else 0
    if hosted:
        limit += f", and beyond that {hosted} bytes of host memory (host_bytes) can be used"
    output = f"{min(asked, policy.max_output_tokens)} output tokens" if asked else "at least 1 output token"
    if request.embed:
        output = "no output"
    ways = ["shorten the prompt", *(["lower max_tokens"] if asked else [])]
    field = "max_tokens" if asked else "prompt"
    if request.beams is not None:
        output += f" for each of {request.beams.width} beams"
        ways.append("lower beam_width")
        field = "beam_width"
    message = (
        f"The request needs {needed * limits.block_bytes} bytes of KV memory ({num_prompt} prompt tokens and {output},"
        f" {needed} blocks), but {limit}. {', '.join(ways).capitalize()} or ask for a higher limit"
        f"{_host_way(request, limits, hosted)}."
    )
    return Refusal(RefusalCode.KV_LIMIT, message, field)


def _host_way(request: GenerationRequest, limits: Limits, hosted: int) -> str:
    """Return what host memory could do for a request that is too large for the device."""
    if not limits.num_slabs or hosted or not request.namespace:
        return ""
    if not may_stream(request):
        return "; only requests with one output can be larger, and go on in host memory"
    return ", on the device or in host memory (host_bytes)"
