"""The C++ backend: thin calls into the library, all shape checks on this side.

A page lies, per block and KV head, as keys, then values: `[D / 2][slot][2]` and `[slot / 2][D][2]` in bfloat16,
`[D][slot]` and `[slot][D]` in float32 (src/pages.inc). One vector load gives sixteen slots of a dimension, or pairs as
the dot product takes them, and both halves share a memory page.
"""

import ctypes
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.cpu.build import library
from kernels.cpu.layers import CpuLayers, hosted_of
from kernels.cpu.library import Geometry, Level, Library
from kernels.cpu.linear import choose_linear
from kernels.cpu.panels import PanelLinear
from kernels.errors import BackendUnavailable
from kernels.layers import ComposedLayers, Layer, LayerStack
from kernels.ops import Linear, Ops
from kernels.pages import LayerPages, Pages, PageShape
from kernels.quantised import WeightDtype

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Store(NamedTuple):
    """Memory that holds blocks: bytes from one block, and from one layer of it, to the next."""

    start: int  # address
    block_bytes: int
    layer_bytes: int
    num_layers: int
    bytes: int  # of one block in one layer


class CpuOps(Ops):
    """C++ on the CPU, on torch's own OpenMP threads."""

    name = "cpu"
    reads_slabs = True

    def __init__(self, dtype: torch.dtype, functions: Library, level: Level, weights: WeightDtype = "auto") -> None:
        super().__init__(torch.device("cpu"), dtype, weights)
        self._functions = functions
        self._level = int(level)
        self._type = _TYPES[dtype]
        self._movers = 0  # threads that copy blocks; 0: all of torch's
        panels = weights == "int8" or _panels_are_best(dtype, level)
        self._linear = None if panels else choose_linear(dtype)
        self.instructions = level.name.lower()

    @classmethod
    def load(
        cls, device: torch.device, dtype: torch.dtype, level: Level | None = None, weights: WeightDtype = "auto"
    ) -> "CpuOps":
        """Build the library if need be and load it. `level` None takes the best instruction set of this machine.

        Raises:
            BackendUnavailable: not a CPU, an unsupported dtype or level, or the library cannot be built or loaded.
        """
        if device.type != "cpu" or dtype not in _TYPES:
            raise BackendUnavailable(
                f"the C++ kernels compute float32 and bfloat16 on the CPU, not {dtype} on {device}"
            )
        functions = Library(library())
        if level is not None and level > functions.best_level:
            raise BackendUnavailable(f"this CPU has no {level.name}")
        return cls(dtype, functions, functions.best_level if level is None else level, weights)

    def empty_pages(self, shape: PageShape) -> Pages:
        """See `Ops.empty_pages`; asks for huge pages."""
        pages = super().empty_pages(shape)
        self._functions.advise_huge(pages.data.data_ptr(), pages.data.nbytes)
        return pages

    def kv_write(self, key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> None:
        """See `Ops.kv_write`."""
        tokens, kv_heads, dim = key.shape
        assert key.stride() == value.stride() and key.stride()[1:] == (dim, 1)
        self._functions.kv_write(
            self._level,
            self._type,
            key.data_ptr(),
            value.data_ptr(),
            key.stride(0),
            pages.data.data_ptr(),
            slots.data_ptr(),
            tokens,
            _geometry(kv_heads, kv_heads, dim, pages.shape.block_size),
            torch.get_num_threads(),
        )

    def paged_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        """See `Ops.paged_attention`."""
        tokens, heads, dim = query.shape
        out = torch.empty((tokens, heads * dim), dtype=self.dtype)
        self._attend(out, None, query, pages, batch, form)
        return out

    def partial_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.partial_attention`; one part."""
        out = torch.empty((1, *query.shape), dtype=torch.float32)
        lse = torch.empty((1, *query.shape[:2]), dtype=torch.float32)
        self._attend(out, lse, query, pages, batch, form)
        return out, lse

    def _attend(
        self,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        query: torch.Tensor,
        pages: LayerPages,
        batch: AttentionBatch,
        form: AttentionForm,
    ) -> None:
        _, heads, dim = query.shape
        assert query.stride()[1:] == (dim, 1)
        hosted = hosted_of(batch, pages.layer)
        self._functions.paged_attention(
            self._level,
            self._type,
            out.data_ptr(),
            query.data_ptr(),
            query.stride(0),
            pages.data.data_ptr(),
            batch.block_table.data_ptr(),
            batch.block_table.stride(0),
            batch.rows.data_ptr(),
            batch.query_starts.data_ptr(),
            batch.contexts.data_ptr(),
            batch.num_sequences,
            _geometry(heads, pages.shape.num_kv_heads, dim, pages.shape.block_size),
            form.scale,
            form.window,
            form.soft_cap,
            None if batch.limits is None else batch.limits.data_ptr(),
            None if hosted is None else ctypes.byref(hosted),
            None if lse is None else lse.data_ptr(),
            torch.get_num_threads(),
        )

    def merge_partials(
        self, parts: torch.Tensor, lse: torch.Tensor, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """See `Ops.merge_partials`."""
        count, tokens, heads, dim = parts.shape
        dtype = dtype or self.dtype
        assert parts.is_contiguous() and lse.is_contiguous() and lse.dtype == torch.float32
        assert lse.shape == parts.shape[:3] and parts.dtype in (dtype, torch.float32)
        out = torch.empty((tokens, heads, dim), dtype=dtype)
        self._functions.merge_partials(
            *(self._level, _TYPES[dtype], _TYPES[parts.dtype], parts.data_ptr(), lse.data_ptr(), out.data_ptr()),
            *(count, tokens * heads, dim, torch.get_num_threads()),
        )
        return out

    def gather_blocks(
        self,
        pages: Pages,
        blocks: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Ops.gather_blocks`."""
        if out is None:
            out = torch.empty((len(blocks), pages.shape.num_layers, pages.shape.block_elements), dtype=self.dtype)
        self._check_slabs(out, pages)
        self._move(_pool(pages), blocks, _slabs(out), places, len(blocks))
        return out

    def scatter_blocks(
        self, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, *, places: torch.Tensor | None = None
    ) -> None:
        """See `Ops.scatter_blocks`."""
        self._check_slabs(slabs, pages)
        self._move(_slabs(slabs), places, _pool(pages), blocks, len(blocks))

    def _check_slabs(self, slabs: torch.Tensor, pages: Pages) -> None:
        assert slabs.stride(-1) == 1 and slabs.dtype == self.dtype
        assert slabs.shape[1:] == (pages.shape.num_layers, pages.shape.block_elements)

    def beside(self) -> "CpuOps":
        """See `Ops.beside`."""
        alone = copy(self)
        alone._movers = 1
        return alone

    def copy_blocks(self, pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """See `Ops.copy_blocks`."""
        self._move(_pool(pages), sources, _pool(pages), targets, len(sources))

    def _move(
        self, source: "Store", sources: torch.Tensor | None, target: "Store", targets: torch.Tensor | None, count: int
    ) -> None:
        self._functions.move_blocks(
            self._level,
            source.start,
            source.block_bytes,
            source.layer_bytes,
            None if sources is None else sources.data_ptr(),
            target.start,
            target.block_bytes,
            target.layer_bytes,
            None if targets is None else targets.data_ptr(),
            count,
            source.num_layers,
            source.bytes,
            self._movers or torch.get_num_threads(),
        )

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, *, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Ops.rms_norm`. `x` is `[T, D]`, or `[T, H, D]` with strided tokens and no residual."""
        dim, inner = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
        assert x.stride(-1) == 1 and (x.dim() == 2 or (x.stride(1) == dim and residual is None))
        assert residual is None or (residual.is_contiguous() and residual.shape == x.shape)
        out = torch.empty(x.shape, dtype=self.dtype)
        self._functions.rms_norm(
            self._level,
            self._type,
            x.data_ptr(),
            x.stride(0),
            None if residual is None else residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            x.shape[0],
            inner,
            dim,
            eps,
            torch.get_num_threads(),
        )
        return out

    def rope(self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> None:
        """See `Ops.rope`."""
        tokens, num_heads, dim = heads.shape
        assert heads.stride()[1:] == (dim, 1)
        self._functions.rope(
            self._level,
            self._type,
            heads.data_ptr(),
            heads.stride(0),
            table.data_ptr(),
            positions.data_ptr(),
            tokens,
            num_heads,
            dim,
            torch.get_num_threads(),
        )

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_mul`."""
        return self._gated(self._functions.silu_mul, gate_up)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.gelu_mul`."""
        return self._gated(self._functions.gelu_mul, gate_up)

    def _gated(self, function: Callable[..., None], gate_up: torch.Tensor) -> torch.Tensor:
        assert gate_up.is_contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=self.dtype)
        function(self._level, self._type, gate_up.data_ptr(), out.data_ptr(), rows, width, torch.get_num_threads())
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Ops.argmax`."""
        logits = logits.contiguous()
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        self._functions.argmax(
            *(
                self._level,
                _TYPES[logits.dtype],
                logits.data_ptr(),
                *logits.shape,
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out

    def top_k(
        self, logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.top_k`."""
        logits = logits.contiguous()
        count, vocab = logits.shape[0] if rows is None else len(rows), logits.shape[1]
        assert 0 <= k <= vocab
        values, ids = torch.empty((count, k)), torch.empty((count, k), dtype=torch.int64)
        self._functions.top_k(
            *(
                self._level,
                _TYPES[logits.dtype],
                logits.data_ptr(),
                None if rows is None else rows.data_ptr(),
                count,
                vocab,
            ),
            *(k, values.data_ptr(), ids.data_ptr(), torch.get_num_threads()),
        )
        return values, ids

    def logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops.logprobs`."""
        logits = logits.contiguous()
        count, width = tokens.shape
        assert count == (logits.shape[0] if rows is None else len(rows))
        tokens = tokens.contiguous()
        out = torch.empty((count, width))
        self._functions.logprobs(
            *(self._level, _TYPES[logits.dtype], logits.data_ptr(), None if rows is None else rows.data_ptr()),
            *(count, logits.shape[1], tokens.data_ptr(), width, out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def sample(self, logits: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        """See `Ops.sample`."""
        logits = logits.contiguous()
        count, vocab = logits.shape
        assert how.shape == (count, 5) and how.is_contiguous() and how.dtype == torch.float64
        out = torch.empty(count, dtype=torch.int64)
        self._functions.sample(
            *(self._level, _TYPES[logits.dtype], logits.data_ptr(), count, vocab),
            *(how.data_ptr(), out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
        """See `Ops.mask`."""
        vocab = logits.shape[1]
        assert logits.is_contiguous()
        assert words.is_contiguous() and words.shape == (len(rows), -(-vocab // 32))
        self._functions.mask(
            *(self._level, _TYPES[logits.dtype], logits.data_ptr(), rows.data_ptr(), len(rows), vocab),
            *(words.data_ptr(), torch.get_num_threads()),
        )

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """See `Ops.pack_linear`."""
        weight, bias = weight.to(self.dtype), None if bias is None else bias.to(self.dtype).contiguous()
        if self._linear is not None:
            return self._linear(weight, bias)
        level, int8 = Level(self._level), self.weights == "int8"
        return PanelLinear(self._functions, level, weight, bias, int8=int8)

    def pack_layers(self, layers: Sequence[Layer]) -> LayerStack:
        """See `Ops.pack_layers`; one call of the library where it has all the linears."""
        if CpuLayers.can_run(layers):
            return CpuLayers(self._functions, Level(self._level), self.dtype, layers, ComposedLayers(self, layers))
        return super().pack_layers(layers)


def _panels_are_best(dtype: torch.dtype, level: Level) -> bool:
    """Whether our own bfloat16 products serve. Where there are AMX tiles, oneDNN uses them and we do not."""
    return dtype == torch.bfloat16 and level is Level.AVX512_BF16 and not torch.cpu._is_amx_tile_supported()


def _pool(pages: Pages) -> Store:
    data = pages.data
    size = data.element_size()
    return Store(data.data_ptr(), data.stride(1) * size, data.stride(0) * size, data.shape[0], data.shape[2] * size)


def _slabs(slabs: torch.Tensor) -> Store:
    size = slabs.element_size()
    return Store(
        slabs.data_ptr(), slabs.stride(0) * size, slabs.stride(1) * size, slabs.shape[1], slabs.shape[2] * size
    )


@lru_cache(maxsize=16)
def _geometry(heads: int, kv_heads: int, dim: int, slots: int) -> "ctypes._Pointer[Geometry]":
    return ctypes.pointer(Geometry(heads, kv_heads, dim, slots))
