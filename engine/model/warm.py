"""Steps that a runner on a GPU makes at start: what is compiled and loaded then does not hold up a request.

They run in the padding's row of the block table, over its one block, and leave it in need of new zeros. The last one is
the largest that the settings allow, so that its memory is known to be there.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.request import BlockId, SamplingParams, SequenceId, SlabId
from engine.step import BlockCopy, CacheShape, LogitChanges, SequenceStep, SlabMove, StepOptions, StepPlan
from kernels.triton_ops.tuning import SPLIT

_GREEDY = SamplingParams(temperature=0.0)
# Each way to choose a token.
_SAMPLINGS = (
    _GREEDY,
    SamplingParams(),
    SamplingParams(top_p=0.9),
    SamplingParams(top_k=40),
    SamplingParams(top_k=40, top_p=0.9),
    SamplingParams(temperature=0.0, num_logprobs=1),
    SamplingParams(min_p=0.1),
)
# What changes logits before a choice.
_SHAPED = StepOptions(
    changes=LogitChanges(np.zeros(1, dtype=np.int64), np.ones((3, 1), dtype=np.float32)),
    banned=frozenset((1,)),
    mask=np.full(1, 0xFFFF_FFFF, dtype=np.uint32),
)

_MOST_LOGPROBS = 20

Part = tuple[int, int]  # tokens before, tokens of the step


def warm_up_plans(
    shape: CacheShape, max_context: int, max_tokens: int, *, tells_hidden: bool = False
) -> Iterator[StepPlan]:
    """Yield plans for a pool of `shape`: contexts of up to `max_context` tokens, steps of up to `max_tokens`.

    `tells_hidden`: prefills ask for embeddings and for the log-probabilities of their prompts, too.
    """
    chunk = min(2, max_context)
    mixes: list[list[Part]] = [
        [(0, 1)] * shape.max_rows,  # which sampling may need most memory for
        [(min(SPLIT, max_context - 1), 1)],  # a decode in parts
        [(0, chunk)],
        [(0, 1), (0, chunk)],  # the chunk's sequences begin elsewhere than at a multiple of 16 bytes
    ]
    first = shape.block_size  # a token behind one block in host memory, which the first plan has stored
    streamed: list[list[Part]] = []
    if shape.streams and first + chunk <= max_context:
        streamed = [[(first, 1)], [(first, chunk)], [(0, 1), (first, 1), (0, chunk), (first, chunk)]]
    last = BlockId(shape.num_blocks)
    for number, parts in enumerate((*mixes, *streamed, _largest(shape, max_context, max_tokens))):
        copies = (BlockCopy(last, last),) if number == 0 else ()
        swap = (SlabMove(last, SlabId(0)),) if shape.num_slabs else ()
        yield StepPlan(
            number=number,
            sequences=_sequences(
                shape.max_rows, parts, first if parts in streamed else max_context + 1, tells_hidden=tells_hidden
            ),
            table_writes=(),
            copies=copies,
            stores=swap if number == 0 else (),
            loads=swap if number == 1 else (),
        )


def _largest(shape: CacheShape, max_context: int, max_tokens: int) -> list[Part]:
    """Return a step of as many tokens as may be."""
    parts: list[Part] = []
    left = max_tokens
    while left and len(parts) < shape.max_rows:
        parts.append((0, min(left, max_context)))
        left -= parts[-1][1]
    return parts


def _sequences(row: int, parts: Sequence[Part], hosted_at: int, *, tells_hidden: bool) -> tuple[SequenceStep, ...]:
    """Return the step's sequences; those that start at `hosted_at` have a block in host memory."""
    return tuple(
        SequenceStep(
            sequence=SequenceId(index),
            row=row,
            start=start,
            token_ids=[0] * length,
            sampling=_SAMPLINGS[index % len(_SAMPLINGS)],
            hosted=(SlabId(0),) if start == hosted_at else (),
            options=_SHAPED if length == 1 else _options(start + length) if tells_hidden else None,
        )
        for index, (start, length) in enumerate(parts)
    )


def _options(num_prompt: int) -> StepOptions:
    """Return what the last chunk of a prompt may ask for beside a token."""
    return StepOptions(num_prompt=num_prompt, prompt_logprobs=_MOST_LOGPROBS, pool=True)
