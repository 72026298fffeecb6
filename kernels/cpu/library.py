"""The compiled library's entry points. Calls through ctypes release the GIL."""

import ctypes
from enum import IntEnum
from pathlib import Path

from kernels.errors import BackendUnavailable

_pointer, _int, _long, _float = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

_SIGNATURES: dict[str, tuple[type, ...]] = {
    "tg_paged_attention": (
        *(_int, _int, _pointer, _pointer, _long, _pointer),  # level, type, out, query, query stride, pages
        *(_pointer, _long, _pointer, _pointer, _pointer, _int),  # table, its stride, rows, starts, contexts, sequences
        *(_pointer, _float, _int, _float),  # geometry, scale, window, soft cap
        *(_pointer, _pointer, _pointer, _int),  # limits, hosted, log-sum-exps, threads
    ),
    "tg_rms_norm": (
        *(_int, _int, _pointer, _long, _pointer, _pointer, _pointer),  # level, type, x, stride, residual, weight, out
        *(_long, _int, _int, _float, _int),  # rows, inner rows, dim, eps, threads
    ),
    "tg_rope": (
        *(_int, _int, _pointer, _long, _pointer, _pointer),  # level, type, heads, stride, table, positions
        *(_long, _int, _int, _int),  # tokens, heads, dim, threads
    ),
    "tg_silu_mul": (
        _int,
        _int,
        _pointer,
        _pointer,
        _long,
        _int,
        _int,
    ),  # level, type, gate_up, out, rows, width, threads
    "tg_gelu_mul": (_int, _int, _pointer, _pointer, _long, _int, _int),  # as tg_silu_mul
    "tg_kv_write": (
        *(_int, _int, _pointer, _pointer, _long, _pointer, _pointer),  # level, type, key, value, stride, pages, slots
        *(_long, _pointer, _int),  # tokens, geometry, threads
    ),
    "tg_linear": (
        *(_int, _int, _pointer, _pointer, _long),  # level, type, weight, x, its stride
        *(_pointer, _long, _int),  # out, rows, threads
    ),
    "tg_layers": (
        *(_int, _int, _pointer, _int, _pointer),  # level, type, layers, how many, batch
        *(_pointer, _pointer, _pointer, _long),  # hidden, residual, pages, bytes of a layer's
        *(_pointer, _pointer, _int),  # layers that are there, seconds waited for them, threads
    ),
    "tg_merge_partials": (
        *(_int, _int, _int, _pointer, _pointer, _pointer),  # level, type, the parts' type, parts, log-sum-exps, out
        *(_int, _long, _int, _int),  # parts, rows, dim, threads
    ),
    "tg_argmax": (_int, _int, _pointer, _long, _int, _pointer, _int),  # level, type, logits, rows, vocab, out, threads
    "tg_top_k": (
        *(_int, _int, _pointer, _pointer, _long, _int),  # level, type, logits, which rows, how many, vocab
        *(_int, _pointer, _pointer, _int),  # k, values, ids, threads
    ),
    "tg_logprobs": (
        *(_int, _int, _pointer, _pointer, _long, _int),  # level, type, logits, which rows, how many, vocab
        *(_pointer, _int, _pointer, _int),  # tokens, how many a row, out, threads
    ),
    "tg_sample": (
        *(_int, _int, _pointer, _long, _int),  # level, type, logits, rows, vocab
        *(_pointer, _pointer, _int),  # how, out, threads
    ),
    "tg_mask": (
        *(_int, _int, _pointer, _pointer, _long, _int),  # level, type, logits, which rows, how many, vocab
        *(_pointer, _int),  # words, threads
    ),
    "tg_advise_huge": (_pointer, _long),
    "tg_move_blocks": (
        *(
            _int,
            _pointer,
            _long,
            _long,
            _pointer,
        ),  # level, from, bytes from block to block and layer to layer, block ids
        *(_pointer, _long, _long, _pointer),  # to, the same
        *(_long, _long, _long, _int),  # blocks, layers, bytes of one block in one layer, threads
    ),
}


class Level(IntEnum):
    """Instruction sets, worst first."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3


class Geometry(ctypes.Structure):
    """Heads and page sizes, as the library's `Geometry`."""

    _fields_ = (
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("slots", ctypes.c_int32),
    )


class LinearWeight(ctypes.Structure):
    """A packed linear layer, as the library's `LinearWeight`."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("form", ctypes.c_int32),
    )


class CpuLayer(ctypes.Structure):
    """A decoder layer, as the library's `Layer`."""

    _fields_ = (
        *((name, ctypes.POINTER(LinearWeight)) for name in ("qkv", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm", "attention_post_norm", "mlp_norm")),
        *((name, ctypes.c_void_p) for name in ("mlp_post_norm", "next_norm", "table")),
        ("geometry", Geometry),
        *((name, ctypes.c_float) for name in ("eps", "scale", "soft_cap")),
        *((name, ctypes.c_int32) for name in ("window", "activation")),
    )


class CpuBatch(ctypes.Structure):
    """The flat batch of a step, as the library's `Batch`."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "query_starts", "contexts", "positions", "slots")),
        ("tokens", ctypes.c_int64),
        ("sequences", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("hosted", ctypes.c_void_p),
    )


class CpuHosted(ctypes.Structure):
    """Leading blocks of sequences that lie in slabs, as the library's `Hosted`."""

    _fields_ = (
        ("slabs", ctypes.c_void_p),
        ("slab_stride", ctypes.c_int64),
        ("layer_stride", ctypes.c_int64),
        ("table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
    )


class Library:
    """Functions of one loaded library, and the best instruction set of this machine."""

    def __init__(self, path: Path) -> None:
        try:
            handle = ctypes.CDLL(str(path))
        except OSError as error:  # built elsewhere, or torch came without libgomp
            raise BackendUnavailable(f"cannot load {path}: {error}; remove it to build it again") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(handle, name)
            function.argtypes, function.restype = arguments, None
        self.best_level = Level(handle.tg_best_level())
        self.paged_attention = handle.tg_paged_attention
        self.rms_norm = handle.tg_rms_norm
        self.rope = handle.tg_rope
        self.silu_mul = handle.tg_silu_mul
        self.gelu_mul = handle.tg_gelu_mul
        self.kv_write = handle.tg_kv_write
        self.linear = handle.tg_linear
        self.layers = handle.tg_layers
        self.merge_partials = handle.tg_merge_partials
        self.argmax = handle.tg_argmax
        self.top_k = handle.tg_top_k
        self.logprobs = handle.tg_logprobs
        self.sample = handle.tg_sample
        self.mask = handle.tg_mask
        self.advise_huge = handle.tg_advise_huge
        self.move_blocks = handle.tg_move_blocks
