"""What crosses between scheduler and runner in one step: plain data, no torch.

plan = scheduler.plan()              # which sequences get how many tokens, in which blocks
result = runner.launch(plan).wait()  # writes KV, runs the model, samples
scheduler.commit(plan, result)       # appends tokens, seals blocks, finishes requests

Where the device computes beside the host, step t + 1 is planned and launched before step t is waited for. What step t
samples stands in the plan of t + 1 as a placeholder, which the runner replaces on the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine.request import BlockId, SamplingParams, SequenceId, SlabId


class LogitChanges(NamedTuple):
    """How a choice changes the logits of some tokens. The arrays are valid until the step has been launched.

    A logit becomes `x = logit + bias`, then `x / repetition` where it is positive, else `x * repetition`, then
    `x - penalty`.
    """

    token_ids: npt.NDArray[np.int64]  # `[K]`, each once
    values: npt.NDArray[np.float32]  # `[3, K]`: bias, repetition and penalty of each


class StepOptions(NamedTuple):
    """What few sequences ask for beside sampling. Those whose choice looks back are in no plan made ahead."""

    changes: LogitChanges | None = None  # by bias and penalties; not of the log-probabilities that are reported
    banned: frozenset[int] = frozenset()  # token ids that are not to be chosen in this step: its end tokens, too early
    mask: npt.NDArray[np.uint32] | None = None  # `[ceil(vocab / 32)]`: bit `i % 32` of word `i // 32` allows token `i`
    num_prompt: int = 0  # of the sequence's tokens, those that are the prompt; of use to what follows
    prompt_logprobs: int = -1  # log-probabilities of the tokens that follow each of `token_ids` in the prompt
    prompt_next: int = -1  # the token that follows the last of `token_ids`, if it is of the prompt; -1: none
    pool: bool = False  # add the last hidden states of `token_ids` up, return the mean with the prompt's last token


class SequenceStep(NamedTuple):
    """One sequence's part of a step: tokens `[start, start + len(token_ids))` of it are computed.

    A tuple, not a frozen dataclass: 256 of them are made in every step, and a dataclass takes five times as long.
    """

    sequence: SequenceId
    row: int  # the sequence's row in the persistent block table
    start: int  # tokens whose KV is already in the pages
    token_ids: Sequence[int]  # 1 for a decode, up to the chunk size for a prefill; negative: see `placeholder`
    sampling: SamplingParams | None  # sample after the last token; None while a prefill is unfinished
    position: int = 0  # how many tokens the sequence has generated so far: the counter of its random stream
    random_key: int = 0  # the sequence's random stream; the request's seed, or one drawn at submit
    hosted: tuple[SlabId, ...] = ()  # its leading blocks that are in host memory alone: attention streams them through
    # staging buffers. Their cells of the block table mean nothing
    options: StepOptions | None = None  # None for nearly all


def placeholder(index: int) -> int:
    """Return what stands for the token that the step before this one samples at `index` of its result: -1, -2, ...

    Only in a plan that is launched before the result of the one before it is there. The runner puts the token there.
    """
    return -1 - index


class TableWrite(NamedTuple):
    """Cells `table[row, column : column + len(blocks)] = blocks`, written before the step runs."""

    row: int
    column: int
    blocks: tuple[BlockId, ...]


class BlockCopy(NamedTuple):
    """Copy a whole block in every layer."""

    source: BlockId
    target: BlockId


class SlabMove(NamedTuple):
    """Copy a whole block, all layers, between the device and a slab of host memory."""

    block: BlockId
    slab: SlabId


class Transfer(NamedTuple):
    """Blocks to copy beside the steps: to slabs, or from them.

    It sees what the steps launched before it have written. Until it is done nobody writes to what it reads, nor reads
    or writes what it writes.
    """

    number: int  # ascending
    is_store: bool  # device to host
    moves: tuple[SlabMove, ...]


class TransferDone(NamedTuple):
    """A transfer that is over."""

    number: int
    seconds: float  # from its start to its end; waiting for its turn is not in it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One engine step. Decodes come first. Lists may be empty, `sequences` never is for a launched plan.

    Order of effects: stores, poison and unfilled, table writes, loads, copies (one after the other: a target may be a
    later source), then the step's own KV writes and reads. Loads may go on while the step computes, layer by layer
    before each layer.
    """

    number: int
    sequences: tuple[SequenceStep, ...]
    table_writes: tuple[TableWrite, ...]
    poison: tuple[BlockId, ...] = ()  # blocks just allocated or freed, to be filled with NaN under ENGINE_POISON
    unfilled: tuple[BlockId, ...] = ()  # of these, those in use that the step does not fill whole: to be overwritten
    copies: tuple[BlockCopy, ...] = ()
    stores: tuple[SlabMove, ...] = ()  # device to host: blocks that are given up, before anybody else has them
    loads: tuple[SlabMove, ...] = ()  # host to device; of a slab that is stored to in the same step, what is stored

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes in this step."""
        return sum(len(part.token_ids) for part in self.sequences)


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities at one position, of the model's own distribution (before temperature, top-k, top-p)."""

    chosen: float  # of the sampled token
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first; ties by token id


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One sampled token id for each sequence with `sampling`, in plan order; seconds of the step on the device.

    Loads that went on beside the step count in `seconds` as if they had come first, so that what is left without
    `store_seconds` and `load_seconds` is always the computation.

    `logprobs` is empty where no sequence asks for any; else it has one entry for each token id, None where the sequence
    asks for none.
    """

    token_ids: tuple[int, ...]
    seconds: float
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    store_seconds: float = 0.0  # that the plan's stores took, in `seconds`
    load_seconds: float = 0.0
    prompt_logprobs: Mapping[SequenceId, tuple[TokenLogprobs, ...]] = field(default_factory=dict)  # of chunks that ask
    pooled: Mapping[SequenceId, tuple[float, ...]] = field(default_factory=dict)  # means of whole prompts


class StepHandle(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the step is done and return its result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The device pool that a runner has allocated."""

    num_blocks: int
    block_size: int  # token slots
    block_bytes: int  # all layers, K and V
    max_rows: int  # rows of the block table: sequences that can hold blocks at once
    max_columns: int  # blocks of the longest sequence
    num_slabs: int = 0  # blocks that fit the host memory set aside for swapping; 0: none is
    streams: bool = False  # the runner's attention reads `SequenceStep.hosted`: sequences may be larger than the pool


class Runner(Protocol):
    """Executes steps over the paged cache. Owns every tensor; knows nothing of tenants."""

    @property
    def shape(self) -> CacheShape:
        """The pool's geometry."""
        ...

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step; steps run in launch order. At most one launched step may not have been waited for."""
        ...

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """Overwrite slabs with zeros, after all launched steps and what transfers do with them: their owners are gone.

        Done on return.
        """
        ...

    def wipe_blocks(self, blocks: Sequence[BlockId]) -> None:
        """Overwrite blocks, after all launched steps and what transfers do with them: their owners are gone."""
        ...

    def copy(self, transfer: Transfer) -> None:
        """Start a transfer, after all launched steps; it runs beside those launched later. They end in any order."""
        ...

    def copied(self) -> list[TransferDone]:
        """Return the transfers that have ended since the last call; waits for nothing."""
        ...

    def slab_memory(self, slab: SlabId) -> memoryview:
        """Return the bytes of a slab, `block_bytes` of them, writable: for a tier below to read from and write to."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether the device computes while the host goes on, so that the next plan may be made meanwhile."""
        ...
