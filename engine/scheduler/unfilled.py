"""Which of the blocks that a plan has allocated keep something of an earlier owner behind what the step writes."""

from collections.abc import Iterable, Sequence

from engine.memory.pool import OPEN, BlockPool
from engine.request import BlockId
from engine.scheduler.sequence import SequenceState
from engine.step import BlockCopy, SequenceStep, SlabMove


def unfilled(
    pool: BlockPool,
    touched: Iterable[BlockId],
    chunks: Iterable[tuple[SequenceState, SequenceStep]],
    *,
    block_size: int,
    loads: Sequence[SlabMove] = (),
    copies: Sequence[BlockCopy] = (),
) -> tuple[BlockId, ...]:
    """Return those of the blocks allocated or freed that somebody has now, and that the step does not fill whole.

    A decode fills none: its token is the first in a block that it was given. What nobody has is overwritten when
    something is erased; what somebody has must be overwritten before, as erasures leave it alone.
    """
    given = [block for block in dict.fromkeys(touched) if pool.state(block) == OPEN]
    if not given:
        return ()
    filled = {move.block for move in loads}
    filled.update(copy.target for copy in copies)
    for sequence, part in chunks:
        if sequence.table is not None:
            end = part.start + len(part.token_ids)
            filled.update(sequence.table.blocks[-(-part.start // block_size) : end // block_size])
    return tuple(block for block in given if block not in filled)
