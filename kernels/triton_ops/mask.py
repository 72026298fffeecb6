"""`mask`: -inf for the tokens that a grammar does not allow, from one bit each."""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two

_MOST = 4096  # tokens at once


@triton.jit
def mask_kernel(logits, rows, words, VOCAB: tl.constexpr, NUM_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Write -inf to BLOCK logits of one named row where the bit is 0."""
    place = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = tokens < VOCAB
    word = tl.load(words + place * NUM_WORDS + tokens // 32, mask=real, other=-1)
    banned = ((word >> (tokens % 32)) & 1) == 0
    row = tl.load(rows + place)
    tl.store(
        logits + row * VOCAB + tokens, tl.full([BLOCK], float("-inf"), logits.dtype.element_ty), mask=real & banned
    )


def mask_launch(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> Launch:
    """Prepare masks `words` `[M, ceil(V / 32)]` int32 over `rows` `[M]` int64 of `logits` `[N, V]`."""
    vocab = logits.shape[1]
    block = min(power_of_two(vocab), _MOST)
    arguments = {
        "logits": logits,
        "rows": rows,
        "words": words,
        "VOCAB": vocab,
        "NUM_WORDS": words.shape[1],
        "BLOCK": block,
    }
    return Launch(mask_kernel, (len(rows), -(-vocab // block)), arguments, num_warps=8)
