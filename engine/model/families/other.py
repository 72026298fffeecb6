"""Models that `transformers`' own class runs over our pages: what can be told of them without torch."""

from engine.errors import ModelError
from engine.model.families.fields import size
from engine.model.spec import Config

_CAUSAL = ("ForCausalLM", "LMHeadModel")
# What different families call the tokens of the longest context.
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")


def limits(config: Config) -> tuple[int, int]:
    """Return the size of the vocabulary and the tokens of the longest context.

    Raises:
        ModelError: not a causal language model over text, or one without positions; it says which, and what to do.
    """
    name = ", ".join(map(str, config.get("architectures") or [])) or "missing"
    if config.get("is_encoder_decoder") or not name.endswith(_CAUSAL):
        raise ModelError(
            f"config.json: architecture {name} is not supported: it is no causal language model over text alone; "
            "choose one whose class ends with ForCausalLM"
        )
    field = next((field for field in _POSITIONS if config.get(field) is not None), None)
    if field is None:
        raise ModelError(
            f"config.json: architecture {name} is not supported: it has no max_position_embeddings, as state-space and "
            "ALiBi models have not, whose state does not fit in KV pages; choose a transformer with positions"
        )
    return size(config, "vocab_size"), size(config, field)
