"""What the trace says of a request: when, whose, how long, and which blocks, by name.

    CoreStarted   first of every segment: the machine that all records behind it are of
    Submitted     a request came
    Started       it runs for the first time; the names of its prompt's blocks
    Ended         it ended, or one of its outputs; the names of the blocks that it filled after the prompt's
    Speed         how long steps take, now and then

A block's name is the first eight bytes of its key (engine/memory/keys.py): SHA-256 chained under the tenant's secret
namespace. Equal names say that two prompts begin alike, and nothing else: no token can be read from one, and without
the secret no guess can be confirmed. Namespaces, texts and token ids are in no record. Times are unix seconds.
"""

import msgspec

NAME_BYTES = 8  # of a block
REFUSED = "refused"  # in place of a FinishReason: the request never ran
ALL_OUTPUTS = -1  # in place of an output's index: of a beam search, whose outputs end together


class Machine(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The pool and the limits of one core; as in `engine.step.CacheShape` and `engine.scheduler.sizing.Limits`."""

    num_blocks: int
    block_size: int  # tokens
    block_bytes: int
    max_rows: int
    max_context: int  # tokens
    max_batched_tokens: int
    num_slabs: int = 0  # blocks that fit the host memory set aside for swapping


class CoreStarted(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """A core began, or goes on in a new segment. Requests before another one's begin have ended with their core."""

    core: int  # drawn at random
    at: float  # when the core began
    machine: Machine


class Submitted(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """A request came. `request` is unique among those of one core."""

    request: int
    at: float
    tenant: str
    priority: str
    num_prompt: int  # tokens
    max_tokens: int  # as asked; 0: as many as limits allow
    num_outputs: int  # sequences of it: `n`, or the beams of a search
    deadline_seconds: float  # from its arrival; 0: none


class Started(msgspec.Struct, tag=2, frozen=True, array_like=True):
    """A request runs for the first time. `names`: eight bytes for each block of its prompt but the last token's."""

    request: int
    at: float
    names: bytes
    group: str  # the share group that its first blocks belong to, or empty
    num_head: int  # so many of them


class Ended(msgspec.Struct, tag=3, frozen=True, array_like=True):
    """A request ended, or one output of it. `names`: of the full blocks from `first_block` on."""

    request: int
    at: float
    index: int  # of the output, or ALL_OUTPUTS
    reason: str
    num_output: int  # tokens
    first_block: int
    names: bytes


class Speed(msgspec.Struct, tag=4, frozen=True, array_like=True):
    """The machine's speed: seconds for a step, a decode, a token of context, a chunk token, a chunk pair; copies."""

    at: float
    weights: tuple[float, ...]
    store_rate: float = 0.0  # bytes a second from the device to host memory; 0: not told
    load_rate: float = 0.0  # and back


Record = CoreStarted | Submitted | Started | Ended | Speed

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode
