"""The fingerprint of a served model: equal fingerprints, the same keys and values (but for rounding) and answers.

It is part of the key of every cached block (engine/memory/keys.py) and the digest on the model card, by which gateways
take two workers for one another. Whatever makes the same tokens give other keys and values has its line in `_fields`.

Not in it: the dtype of computation, which is the blocks' own `kv_format` and merely rounds answers otherwise; how pages
are laid out; kernels, devices, threads and batch sizes, which round.
"""

import hashlib
from collections.abc import Iterator

from engine.config import EngineConfig
from engine.model.families import read_spec
from engine.model.folder import ModelFolder

_VERSION = 1  # raise it when the engine comes to compute other keys and values from the same settings


def fingerprint(folder: ModelFolder, config: EngineConfig) -> str:
    """Return a SHA-256 in hex, the same in both processes of a worker and on every machine."""
    total = hashlib.sha256()
    for field in _fields(folder, config):
        total.update(len(field).to_bytes(4, "little") + field)
    return total.hexdigest()


def _fields(folder: ModelFolder, config: EngineConfig) -> Iterator[bytes]:
    yield b"%d" % _VERSION
    yield folder.digest.encode()  # config.json and the weight files
    yield config.load_format.encode()  # dummy: the weights are drawn
    yield config.weight_dtype.encode()  # int8: what the linears hold has been rounded
    yield b"long" if _stretches(folder) else b""


def _stretches(folder: ModelFolder) -> bool:
    """Whether positions turn otherwise because contexts beyond the trained ones are served (LongRoPE)."""
    spec = read_spec(folder.config)
    ropes = [layer.rope for layer in spec.layers if layer.rope is not None] if spec is not None else []
    return any(
        rope.kind == "longrope" and folder.max_context_tokens > rope.parameters["original_max_position_embeddings"]
        for rope in ropes
    )
