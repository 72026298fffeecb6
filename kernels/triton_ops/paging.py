"""Where a token's key and value lie: the page format `[block, K or V, head, slot, D]`, and the loads of a tile.

A tile reads its block ids one turn ahead, in the loop's own variables: an address that hangs on a load inside the same
turn cannot be fetched early, and the pipeline would wait for each page.
"""

import triton
import triton.language as tl


@triton.jit
def load_blocks(row, tokens, end, SLOTS: tl.constexpr):
    """Return the block id of each token before `end`; block 0, which nobody reads, elsewhere."""
    return tl.load(row + tokens // SLOTS, mask=tokens < end, other=0)


@triton.jit
def slot_offsets(blocks, tokens, head, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, DIM: tl.constexpr):
    """Return where each token's key begins; its value is KV_HEADS * SLOTS * DIM elements further."""
    return blocks.to(tl.int64) * (2 * KV_HEADS * SLOTS * DIM) + head * (SLOTS * DIM) + (tokens % SLOTS) * DIM


@triton.jit
def load_keys(pages, offsets, dims, kept, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the keys `[BLOCK_D, tokens]`, zero where `kept` is false: an unwritten slot may hold NaN."""
    mask = kept[None, :]
    if BLOCK_D != DIM:
        mask = mask & (dims < DIM)[:, None]
    return tl.load(pages + offsets[None, :] + dims[:, None], mask=mask, other=0.0)


@triton.jit
def load_values(pages, offsets, dims, kept, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the values `[tokens, BLOCK_D]`, zero where `kept` is false."""
    mask = kept[:, None]
    if BLOCK_D != DIM:
        mask = mask & (dims < DIM)[None, :]
    return tl.load(pages + offsets[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def cap(scores, soft_cap, CAPPED: tl.constexpr):
    """Return `soft_cap * tanh(scores / soft_cap)`, or the scores. Source: Gemma 2 (arXiv 2408.00118)."""
    if CAPPED:
        # tanh(x) = sign(x) (1 - e) / (1 + e), where e = exp(-2 |x|) overflows nowhere
        shrunk = tl.exp(-2.0 * tl.abs(scores) / soft_cap)
        bent = soft_cap * (1.0 - shrunk) / (1.0 + shrunk)
        return tl.where(scores < 0, -bent, bent)
    return scores


@triton.jit
def log_sum(top, total):
    """Return the log of a row's summed exponentials, -inf for a row without any."""
    return tl.where(total == 0.0, float("-inf"), top + tl.log(tl.where(total == 0.0, 1.0, total)))
