"""Whether a model of `transformers` can run over pages: by its configuration, its layers' questions, its logits."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel

from engine.errors import ModelError
from engine.model.paged_modules import NAME, connect
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import Pages, PageShape

_log = logging.getLogger("tollgate.model")

Forward = Callable[[torch.Tensor, AttentionBatch, Pages, torch.Tensor], torch.Tensor]
"""See `engine.model.decoder.Decoder.forward`."""

_BLOCK = 4
_LENGTHS = (11, 7)  # tokens of the trial's two sequences
_SPLITS = (6, 3)  # of which so many come in its first step
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}  # root mean squares, relative


class Layout(NamedTuple):
    """What a model keeps in the pages."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class PagedModel(Protocol):
    """The model that is tried."""

    def page_shape(self, *, num_blocks: int, block_size: int) -> PageShape:
        """See `engine.model.model.Model`."""
        ...

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages, sampled: torch.Tensor
    ) -> torch.Tensor:
        """See `engine.model.model.Model`."""
        ...

    def hidden(self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages) -> torch.Tensor:
        """See `engine.model.model.Model`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `engine.model.model.Model`."""
        ...


def check_config(model: PreTrainedModel, max_context: int) -> None:
    """Refuse what the configuration tells: other layers than attention, rotations that depend on the batch.

    Raises:
        ModelError: says which, and what to do where something can be done.
    """
    config = model.config.get_text_config()
    kinds = {str(kind) for kind in getattr(config, "layer_types", None) or ()}
    if other := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ModelError(f"it has layers of {', '.join(other)}, whose state does not fit in KV pages")
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        trained = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and max_context > int(trained or 0):
            raise ModelError(
                "its rope_type 'longrope' turns by the longest request of a batch; set ENGINE_MAX_CONTEXT to "
                f"{trained} or less, within which it does not"
            )


def measure(model: PreTrainedModel, ops: Ops) -> Layout:
    """Return what the model keeps in the pages, by asking its layers once.

    Raises:
        ModelError: its layers don't go through the attention interface one by one, or differ in their heads.
    """
    if "position_ids" not in _parameters(model):
        raise ModelError(f"{type(model).__name__} takes no position_ids")
    config = model.config.get_text_config()
    recorder = _Recorder()
    connect(model, recorder)
    tokens = torch.zeros((1, 2), dtype=torch.int64, device=ops.device)
    model(tokens, position_ids=torch.arange(2, device=ops.device)[None], use_cache=False)
    layers = sorted(asked.layer for asked in recorder.asked)
    if layers != list(range(int(config.num_hidden_layers))):
        raise ModelError(
            f"its {config.num_hidden_layers} layers ask transformers' attention interface {len(layers)} times; "
            "over KV pages each layer asks once"
        )
    _check_windows(config, recorder.asked)
    heads = {asked.kv_heads for asked in recorder.asked}
    if len(heads) > 1:
        raise ModelError(f"its layers have {', '.join(map(str, sorted(heads)))} KV heads; they must be alike")
    widest = max(asked.width for asked in recorder.asked)
    return Layout(len(layers), heads.pop(), widest + widest % 2)


def compare(model: PreTrainedModel, paged: PagedModel, ops: Ops) -> None:
    """Compute two short sequences side by side over pages, in two steps, and each alone by the model's own attention.

    Raises:
        ModelError: the logits differ by more than rounding.
    """
    prompts = _prompts(model, ops)
    found = _over_pages(paged.forward, paged, prompts, ops)
    model.set_attn_implementation("eager")
    try:
        expected = torch.stack([_own(model, prompt) for prompt in prompts])
    finally:
        model.set_attn_implementation(NAME)
    error = _difference(found, expected)
    if not error <= _TOLERANCE[ops.dtype]:
        raise ModelError(f"over pages its logits differ from its own by {error:.1%}; {ops.dtype} explains less")


def hidden_size(model: PreTrainedModel, paged: PagedModel, ops: Ops) -> int:
    """Return the size of the hidden states that the model's logits come from; 0: they come from something else too.

    Such as of a class that does not run the decoder inside, or that hands its head more than the decoder's result.
    """
    sizes = set[int]()

    def in_two(token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages, sampled: torch.Tensor) -> torch.Tensor:
        hidden = paged.hidden(token_ids, batch, pages)
        sizes.add(hidden.shape[-1])
        return paged.logits(hidden[sampled])

    prompts = _prompts(model, ops)
    expected = _over_pages(paged.forward, paged, prompts, ops)
    try:
        found = _over_pages(in_two, paged, prompts, ops)
    except (ModelError, ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as failure:
        _log.warning("model: no embeddings, and no log-probabilities of prompts: %s", failure)
        return 0
    error = _difference(found, expected)
    if not error <= _TOLERANCE[ops.dtype]:
        reason = f"its head alone is off by {error:.1%}"
        _log.warning("model: no embeddings, and no log-probabilities of prompts: %s", reason)
        return 0
    (size,) = sizes
    return size


class _Asked(NamedTuple):
    layer: int
    form: AttentionForm
    kv_heads: int
    width: int  # of a head's key or value, whichever is larger


class _Recorder:
    """Notes what the layers ask, and answers nothing of use."""

    def __init__(self) -> None:
        self.asked: list[_Asked] = []

    def attend(
        self, layer: int, form: AttentionForm, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """See `Attending`."""
        self.asked.append(_Asked(layer, form, key.shape[1], max(key.shape[2], value.shape[2])))
        return query.new_zeros((*query.shape[:2], value.shape[2]))


def _own(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the last logits of the model as transformers runs it: `[vocab]`."""
    positions = torch.arange(len(tokens), device=tokens.device)
    logits: torch.Tensor = model(tokens[None], position_ids=positions[None], use_cache=False).logits[0, -1]
    return logits


def _parameters(model: PreTrainedModel) -> Mapping[str, Any]:
    return inspect.signature(model.forward).parameters


def _ropes(parameters: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the model's ropes: one for all layers, or one for each kind of layer."""
    if isinstance(parameters, Mapping):
        nested = [one for one in parameters.values() if isinstance(one, Mapping)]
        yield from nested or [parameters]


def _check_windows(config: Any, asked: list[_Asked]) -> None:
    """Raise where the configuration has a window that the layer does not ask for: it would live in a mask alone."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return
    for one in asked:
        slides = types is None or types[one.layer] == "sliding_attention"
        if slides and one.form.window != window:
            raise ModelError(f"its layer {one.layer} does not pass its sliding_window on to the attention interface")


def _prompts(model: PreTrainedModel, ops: Ops) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    vocab = int(model.config.get_text_config().vocab_size)
    return [torch.randint(vocab, (length,), generator=random).to(ops.device) for length in _LENGTHS]


def _over_pages(forward: Forward, paged: PagedModel, prompts: list[torch.Tensor], ops: Ops) -> torch.Tensor:
    """Return the last logits of both prompts, `[2, vocab]`, as `forward` computes them over pages of the model."""
    columns = -(-max(_LENGTHS) // _BLOCK)
    pages = ops.empty_pages(paged.page_shape(num_blocks=2 * columns, block_size=_BLOCK))
    pages.data.fill_(float("nan"))  # what no step has written must not be read
    table = torch.arange(2 * columns - 1, -1, -1, dtype=torch.int32, device=ops.device).view(2, columns)
    logits = torch.empty(0)
    for starts, ends in (((0, 0), _SPLITS), (_SPLITS, _LENGTHS)):
        chunks = [prompt[start:end] for prompt, start, end in zip(prompts, starts, ends, strict=True)]
        batch = _batch(table, starts, ends)
        logits = forward(torch.cat(chunks), batch, pages, batch.query_starts[1:].long() - 1)
    return logits


def _batch(table: torch.Tensor, starts: tuple[int, ...], ends: tuple[int, ...]) -> AttentionBatch:
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    spans = [torch.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(table.device)
    positions = torch.cat(spans).to(table.device)
    return AttentionBatch(
        positions=positions.int(),
        slots=table[rows, positions // _BLOCK].long() * _BLOCK + positions % _BLOCK,
        query_starts=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32).to(table.device),
        contexts=torch.tensor(ends, dtype=torch.int32).to(table.device),
        rows=torch.arange(len(lengths), dtype=torch.int32, device=table.device),
        block_table=table,
        max_query=max(lengths),
        max_context=max(ends),
    )


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much logits differ from others, relative to those."""
    expected, found = _centred(expected), _centred(found)
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def _centred(logits: torch.Tensor) -> torch.Tensor:
    wide = logits.double()
    return wide - wide.mean(-1, keepdim=True)
