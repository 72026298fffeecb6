"""Attention by two staging buffers against float64, on every backend: what a GPU does with blocks in host memory."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.model import streaming
from engine.model.lanes import PinnedLane
from engine.model.layout import lay_out
from engine.model.slabs import Slabs
from engine.model.streaming import Streaming
from engine.request import SamplingParams, SequenceId, SlabId
from engine.step import SequenceStep
from kernels.batch import AttentionForm
from kernels.ops import Ops, select_backend
from kernels.pages import Pages
from kernels.triton_ops.ops import TritonOps
from tests.engine.model.device_like import CPU, HostEvent
from tests.engine.model.test_copier import NotedSide
from tests.engine.model.test_slabs import moves
from tests.kernels.cases import Case, Heads, assert_close, exact_attention, make_case

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)
FORMS = [AttentionForm(0.125), AttentionForm(0.125, 40), AttentionForm(1.0, 200, 5.0), AttentionForm(0.125, 3)]


@pytest.fixture(params=["reference", "cpu", "triton"])
def name(request: pytest.FixtureRequest) -> str:
    """The backend; Triton in its interpreter."""
    return str(request.param)


def ops_of(name: str, dtype: torch.dtype) -> Ops:
    """Return kernels."""
    if name == "triton":
        return TritonOps(CPU, dtype)
    return select_backend(name, device=CPU, dtype=dtype)  # type: ignore[arg-type]


class Staged:
    """A case whose sequences have `counts` leading blocks in slabs, and poison where these were."""

    def __init__(self, ops: Ops, case: Case, sequences: Sequence[tuple[int, int]], counts: Sequence[int]) -> None:
        self.side = NotedSide()
        pages = Pages(case.pages.shape, case.pages.data[None], (case.pages,))
        slabs = Slabs(ops, pages, sum(counts) + 2)
        free = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(1)).tolist()
        parts, table = [], case.batch.block_table
        for index, ((length, context), count) in enumerate(zip(sequences, counts, strict=True)):
            row = int(case.batch.rows[index])
            blocks, places = table[row, :count].tolist(), [free.pop() for _ in range(count)]
            slabs.store(moves(blocks, places), torch.from_numpy)
            pages.fill(torch.tensor(blocks, dtype=torch.int64), float("nan"))
            table[row, :count] = 0
            parts.append(
                SequenceStep(
                    sequence=SequenceId(index),
                    row=row,
                    start=context - length,
                    token_ids=[0] * length,
                    sampling=GREEDY,
                    hosted=tuple(map(SlabId, places)),
                )
            )
        self.layout = lay_out(parts, np.maximum(table.numpy(), 0), BLOCK)
        self.lane = PinnedLane(CPU, HostEvent)
        self.lane.begin()
        self.streaming = Streaming(ops, slabs, case.pages.shape, self.side)
        self.step = self.streaming.start(parts, self.layout, case.batch, self.lane)
        self.case = case

    def attend(self, form: AttentionForm) -> torch.Tensor:
        """Return the step's attention."""
        return self.step.attend(self.case.query, self.case.pages, form)


def staged(ops: Ops, sequences: list[tuple[int, int]], counts: list[int]) -> Staged:
    """Return a case with hosted blocks."""
    heads = Heads(2, 1, 64) if ops.name == "triton" else Heads(4, 2, 64)
    return Staged(ops, make_case(ops, heads, sequences, block_size=BLOCK), sequences, counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_whole_from_parts(
    name: str, dtype: torch.dtype, form: AttentionForm, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes and chunks, some with all blocks in the pages, by pieces of one block, of three, and of all."""
    if name == "triton":
        if size == 1:
            return  # the interpreter would take minutes, and knows no more of one block than of three
        dtype = torch.float32 if dtype == torch.float32 else torch.float16  # its bfloat16 is wrong
    monkeypatch.setattr(streaming, "STAGE_BYTES", size * 2 * 2 * BLOCK * 64 * dtype.itemsize)
    monkeypatch.setattr(streaming, "_JOIN_BYTES", 50_000)
    ops = ops_of(name, dtype)
    if name == "triton":
        one = staged(ops, [(1, 90), (1, 5), (9, 70), (3, 3)], [5, 0, 3, 0])
    else:
        sequences = [(1, 100), (1, 5), (1, 230), (5, 70), (20, 20), (17, 200)]
        one = staged(ops, sequences, [6, 0, 14, 3, 0, 11])
    assert_close(one.attend(form), exact_attention(one.case, form))


@pytest.mark.parametrize("sequences", [[(1, 100), (1, 230)], [(9, 130)], [(1, 40), (9, 130)]], ids=str)
def test_all_are_hosted(name: str, sequences: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step all of whose sequences have hosted blocks."""
    monkeypatch.setattr(streaming, "STAGE_BYTES", 5 * 2 * 2 * BLOCK * 64 * 4)
    one = staged(ops_of(name, torch.float32), sequences, [(end - length) // BLOCK for length, end in sequences])
    assert_close(one.attend(FORMS[0]), exact_attention(one.case, FORMS[0]))


def test_pieces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next piece is brought while one is attended to, into the other buffer, whose last reader it waits for."""
    monkeypatch.setattr(streaming, "STAGE_BYTES", 4 * 2 * 2 * BLOCK * 64 * 4)
    one = staged(ops_of("cpu", torch.float32), [(1, 200)], [11])
    marks = [event.number for event in one.side.events]
    assert marks == [0, 1, 2, 3, 4]  # filled and used of either buffer, and the beginning
    assert one.side.log == ["record 4 on steps", "stream 0 waits for 4"]
    one.side.log.clear()
    one.attend(FORMS[0])
    assert one.side.log == [
        *("stream 0 waits for 1", "record 0 on stream 0"),  # piece 0 to the first buffer
        *("stream 0 waits for 3", "record 2 on stream 0"),  # piece 1 to the second
        *("steps waits for 0", "record 1 on steps"),
        *("stream 0 waits for 1", "record 0 on stream 0"),  # piece 2, when the first has been read
        *("steps waits for 2", "record 3 on steps"),
        *("steps waits for 0", "record 1 on steps"),
    ]


def test_what_no_query_sees_is_not_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces before the windows of all queries stay where they are: three of one sequence, and one of another."""
    monkeypatch.setattr(streaming, "STAGE_BYTES", 4 * 2 * 2 * BLOCK * 64 * 4)
    one = staged(ops_of("cpu", torch.float32), [(2, 200), (1, 50)], [12, 3])
    for window, pieces in ((1, 0), (2, 0), (3, 1), (7, 1), (8, 2), (71, 2), (72, 3), (135, 3), (136, 4), (0, 4)):
        one.side.log.clear()
        form = AttentionForm(0.125, window)
        assert_close(one.attend(form), exact_attention(one.case, form))
        assert sum("on stream" in line for line in one.side.log) == pieces, (window, one.side.log)
