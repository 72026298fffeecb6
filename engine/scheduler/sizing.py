"""Which requests can be served at all: pure checks of one request against model, policy and pool."""

import math
from dataclasses import dataclass

from engine.policy import TenantPolicy
from engine.request import GenerationRequest, RefusalCode
from engine.scheduler.outputs import Refusal

MAX_OUTPUTS = 128  # of one request
MAX_LOGPROBS = 128  # most likely tokens to report at each position


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What model and pool allow to anyone."""

    vocab_size: int
    max_context: int  # tokens
    num_blocks: int
    block_size: int  # tokens
    block_bytes: int

    def hard_blocks(self, policy: TenantPolicy) -> int:
        """Return the tenant's ceiling in whole blocks of this pool."""
        return min(policy.kv_hard_bytes // self.block_bytes, self.num_blocks)

    def soft_blocks(self, policy: TenantPolicy) -> int:
        """Return the tenant's guarantee in whole blocks of this pool."""
        return min(policy.kv_soft_bytes // self.block_bytes, self.num_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


def check_form(request: GenerationRequest, limits: Limits) -> Refusal | None:
    """Return what is wrong with the request itself, whoever sent it."""
    prompt, sampling = request.prompt, request.sampling
    if not prompt:
        return Refusal(RefusalCode.INVALID, "The prompt is empty: send at least one token.", "prompt")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        message = f"Token id {wrong} is not in the model's vocabulary: ids go from 0 to {limits.vocab_size - 1}."
        return Refusal(RefusalCode.INVALID, message, "prompt")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return Refusal(RefusalCode.INVALID, "temperature must be a number of at least 0.", "temperature")
    if not 0 < sampling.top_p <= 1:
        return Refusal(RefusalCode.INVALID, "top_p must be above 0 and at most 1.", "top_p")
    if sampling.top_k < 0:
        return Refusal(RefusalCode.INVALID, "top_k must be at least 0; 0 turns it off.", "top_k")
    if not 1 <= request.n <= MAX_OUTPUTS:
        return Refusal(RefusalCode.INVALID, f"n must be from 1 to {MAX_OUTPUTS}.", "n")
    if not -1 <= sampling.num_logprobs <= MAX_LOGPROBS:
        return Refusal(RefusalCode.INVALID, f"logprobs must be from 0 to {MAX_LOGPROBS}, or left out.", "logprobs")
    if sampling.max_tokens < 0:
        return Refusal(RefusalCode.INVALID, "max_tokens must be at least 1, or left out.", "max_tokens")
    return None


def size(request: GenerationRequest, policy: TenantPolicy, limits: Limits) -> int | Refusal:
    """Return how many tokens the request may generate under its tenant's policy, or why it never can.

    An explicit `max_tokens` is cut to the policy's `max_output_tokens` and must fit context and hard limit with the
    prompt; without one, the request gets all that context, policy and hard limit leave.
    """
    num_prompt, asked = len(request.prompt), request.sampling.max_tokens
    context = min(limits.max_context, policy.max_context_tokens)
    if num_prompt + max(1, asked) > context:
        return _context_too_long(num_prompt, asked, context)
    if policy.max_output_tokens < 1:
        return Refusal(RefusalCode.CONTEXT_TOO_LONG, "The tenant's policy allows 0 output tokens.", "max_tokens")
    wanted = min(asked or context - num_prompt, policy.max_output_tokens)
    hard = limits.hard_blocks(policy)
    needed = limits.blocks_for(num_prompt + (wanted if asked else 1))
    if needed > hard:
        return _kv_limit(request, policy, limits, needed)
    return min(wanted, hard * limits.block_size - num_prompt)


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
    if policy.kv_hard_bytes <= pool_bytes:
        limit = f"the tenant's hard limit (kv_hard_bytes) on this worker is {policy.kv_hard_bytes} bytes"
    else:
        limit = f"the worker's KV memory is {pool_bytes} bytes in all"
    output = f"{min(asked, policy.max_output_tokens)} output tokens" if asked else "at least 1 output token"
    message = (
        f"The request needs {needed * limits.block_bytes} bytes of KV memory ({num_prompt} prompt tokens and {output},"
        f" {needed} blocks), but {limit}. Shorten the prompt{', lower max_tokens' if asked else ''}"
        " or ask for a higher limit."
    )
    return Refusal(RefusalCode.KV_LIMIT, message, "max_tokens" if asked else "prompt")
