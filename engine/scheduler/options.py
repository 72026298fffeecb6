"""What a step is told of the few sequences that ask for more than plain sampling."""

from engine.scheduler.sequence import SequenceState
from engine.step import StepOptions


def options_of(sequence: SequenceState, start: int, num_tokens: int) -> StepOptions:
    """Return what the runner needs to know beside the sampling, where tokens `[start, start + num_tokens)` are computed.

    A sequence whose choice looks back is planned with all its tokens known, so that its history is whole.
    """
    request, sampling, tokens = sequence.request, sequence.sampling, sequence.tokens
    num_prompt, end = sequence.num_prompt, start + num_tokens
    samples = end >= len(tokens) and not request.embed
    is_early = samples and end - num_prompt < sampling.min_tokens
    scores = sampling.prompt_logprobs if start < num_prompt - 1 else -1
    constraint = sequence.constraint
    return StepOptions(
        history=tokens if samples and sampling.penalises else (),
        num_prompt=num_prompt,
        banned=sequence.stop_ids if is_early else frozenset(),
        mask=constraint.mask(tokens, num_prompt) if samples and constraint is not None else None,
        prompt_logprobs=scores,
        prompt_next=tokens[end] if scores >= 0 and end < num_prompt else -1,
        pool=request.embed,
    )
