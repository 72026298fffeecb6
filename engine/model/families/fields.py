"""Fields of a config.json: sizes, rotary positions, windows. What cannot run is refused here, by name."""

from collections.abc import Collection
from typing import Any

from engine.errors import ModelError
from engine.model.spec import Config, RopeSpec

_ROPE_NUMBERS = {
    "default": (),
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}  # kind -> numbers that it needs


def size(config: Config, field: str, default: int | None = None) -> int:
    """Return a positive whole number; `default` stands for one that is left out or null."""
    value = config.get(field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {field}={value!r}: expected a positive whole number")
    return value


def number(config: Config, field: str, default: float) -> float:
    """Return a number of at least 0; `default` stands for one that is left out or null."""
    value = config.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ModelError(f"config.json: {field}={value!r}: expected a number of at least 0")
    return float(value)


def refuse_activation(config: Config, field: str, *, default: str, allowed: Collection[str]) -> None:
    """Raise unless the MLP's activation is one of `allowed`."""
    value = config.get(field) or default
    if value not in allowed:
        raise ModelError(f"config.json: {field}={value!r}: only {', '.join(allowed)} is supported")


def layer_windows(config: Config, window: int, default: Collection[bool]) -> tuple[int, ...]:
    """Return each layer's window: `layer_types` says which layers slide; without it, `default` does."""
    types = config.get("layer_types")
    slides = list(default)
    if types is not None:
        unknown = sorted({str(kind) for kind in types} - {"full_attention", "sliding_attention"})
        if unknown or len(types) != len(slides):
            raise ModelError(
                f"config.json: layer_types={types!r}: expected full_attention or sliding_attention for each of "
                f"{len(slides)} layers"
            )
        slides = [kind == "sliding_attention" for kind in types]
    if any(slides) and not window:
        raise ModelError(f"config.json: sliding_window={config.get('sliding_window')!r}: layers slide without a window")
    return tuple(window if sliding else 0 for sliding in slides)


def rope(config: Config, head_dim: int, *, theta: float = 10000.0, partial: bool = False) -> RopeSpec:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

    Args:
        config: the whole config.json.
        head_dim: elements of a head.
        theta: what a configuration without a base means.
        partial: whether the family may turn the leading part of a head alone.
    """
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = parameters.pop("rope_theta", None) or config.get("rope_theta") or theta
    return rope_of(config, parameters, head_dim, theta=float(base), partial=partial)


def rope_of(
    config: Config, parameters: dict[str, Any], head_dim: int, *, theta: float, partial: bool = False
) -> RopeSpec:
    """Check the parameters of one kind of rope."""
    kind = str(parameters.pop("rope_type", parameters.pop("type", "default")))
    kind = "longrope" if kind == "su" else kind
    if kind not in _ROPE_NUMBERS:
        raise ModelError(f"config.json: rope_type {kind!r} is not supported; supported are {', '.join(_ROPE_NUMBERS)}")
    for field in _ROPE_NUMBERS[kind]:
        if not isinstance(parameters.get(field), int | float):
            raise ModelError(f"config.json: rope_type {kind!r} needs the number {field!r}")
    share = float(parameters.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0)
    if share != 1.0 and not partial:
        raise ModelError(f"config.json: partial_rotary_factor={share}: only full rotary positions are supported")
    dim = int(head_dim * share)
    if not 0 < dim <= head_dim or dim % 2:
        raise ModelError(f"config.json: partial_rotary_factor={share}: turns {dim} of {head_dim}, which must be even")
    positions = size(config, "max_position_embeddings")
    trained = config.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = trained or positions
    if kind == "longrope":
        _check_longrope(parameters, dim, positions)
    return RopeSpec(theta=theta, kind=kind, parameters=parameters, dim=dim)


def _check_longrope(parameters: dict[str, Any], dim: int, positions: int) -> None:
    """Raise unless both lists of factors fit the head, and note by how much the context was stretched."""
    for field in ("short_factor", "long_factor"):
        factors = parameters.get(field)
        whole = isinstance(factors, list) and all(isinstance(one, int | float) for one in factors)
        if not isinstance(factors, list) or not whole or len(factors) != dim // 2:
            raise ModelError(f"config.json: rope_type 'longrope' needs {dim // 2} numbers {field!r}")
    if parameters.get("factor") is None:
        parameters["factor"] = positions / parameters["original_max_position_embeddings"]
