"""The model folder: everything about a model but its tensors. Free of torch, so that the front can read it.

    folder = resolve_model(EngineConfig.from_env())   # downloads or converts what is missing
    folder.path, folder.tokenizer_json, folder.chat_template

`python -m engine.model.folder` prepares the configured model ahead of time.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, ModelError
from engine.model import fetch
from engine.model.families import read_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on disk, in the layout of `transformers`."""

    path: Path
    name: str  # what clients call it
    digest: str  # SHA-256 of configuration and weights: equal weights, equal digest, on every machine
    config: Mapping[str, Any]  # config.json
    tokenizer_json: bytes
    chat_template: str  # jinja; empty: the model has none
    special_tokens: dict[str, str]  # bos_token, eos_token, pad_token, unk_token, as far as the model has them
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_context_tokens: int

    @property
    def architecture(self) -> str:
        """The model class that config.json names."""
        return str(self.config["architectures"][0])

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The safetensors files."""
        return tuple(_weight_files(self.path))


def resolve_model(config: EngineConfig) -> ModelFolder:
    """Find the model that the configuration names and read its folder; fetch or convert it first when it is missing.

    `config.model` is the default model's name, a folder, a .gguf file or a hub id, tried in this order.

    Raises:
        ModelError: the model cannot be found, fetched, converted or run.
        ConfigError: `max_context` is more than the model can do.
    """
    path, name = _locate(config.model)
    dummy = config.load_format == "dummy"
    return read_folder(path, name=config.model_name or name, max_context=config.max_context, dummy=dummy)


def read_folder(path: Path, *, name: str, max_context: int = 0, dummy: bool = False) -> ModelFolder:
    """Read a safetensors folder.

    Args:
        path: the folder.
        name: what clients call the model.
        max_context: tokens that lower the model's own limit; 0 keeps it.
        dummy: the weights will be drawn, so there need be no files of them.
    """
    model = _json(path / "config.json")
    vocab_size, max_positions = read_limits(model)
    if max_context > max_positions:
        raise ConfigError(f"ENGINE_MAX_CONTEXT={max_context}: the model takes at most {max_positions} tokens")
    tokenizer_json = _required(path / "tokenizer.json", "save the tokenizer there with AutoTokenizer.save_pretrained")
    special_tokens = _special_tokens(path)
    return ModelFolder(
        path=path,
        name=name,
        digest=_digest(path, () if dummy else _weight_files(path)),
        config=model,
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(path),
        special_tokens=special_tokens,
        eos_token_ids=_eos_token_ids(path, model, tokenizer_json, special_tokens),
        vocab_size=vocab_size,
        max_context_tokens=max_context or max_positions,
    )


def _locate(model: str) -> tuple[Path, str]:
    path = Path(model).expanduser()
    if model == fetch.DEFAULT_MODEL:
        return fetch.default_model(), model
    if path.is_dir():
        return path.resolve(), path.resolve().name
    if path.suffix == ".gguf" and path.is_file():
        return fetch.converted_gguf(path.resolve()), path.stem.lower()
    if model.count("/") == 1 and not model.startswith((".", "/", "~")) and path.suffix != ".gguf":
        return fetch.hub_snapshot(model), model
    raise ModelError(
        f"ENGINE_MODEL={model!r}: no such folder or .gguf file, and not a hub id (owner/name); "
        f"the default is {fetch.DEFAULT_MODEL}"
    )


def _required(path: Path, advice: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: {advice}") from None


def _json(path: Path) -> dict[str, Any]:
    raw = _required(path, "expected a folder in the layout of transformers")
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def _optional(path: Path) -> dict[str, Any]:
    return _json(path) if path.exists() else {}


def _chat_template(path: Path) -> str:
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text()
    template = _optional(path / "tokenizer_config.json").get("chat_template") or ""
    if isinstance(template, list):  # several named ones
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), "")
    return str(template)


def _special_tokens(path: Path) -> dict[str, str]:
    merged = _optional(path / "special_tokens_map.json") | _optional(path / "tokenizer_config.json")
    tokens = {}
    for kind in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = merged.get(kind)
        text = value.get("content") if isinstance(value, dict) else value
        if text:
            tokens[kind] = str(text)
    return tokens


def _eos_token_ids(
    path: Path, model: Mapping[str, Any], tokenizer_json: bytes, special_tokens: Mapping[str, str]
) -> tuple[int, ...]:
    """Return what ends a generation: generation_config's ids; without them config's and the tokenizer's own."""
    ids = _ids(_optional(path / "generation_config.json").get("eos_token_id"))
    if not ids:
        added = json.loads(tokenizer_json).get("added_tokens") or []
        eos = special_tokens.get("eos_token")
        ids = _ids(model.get("eos_token_id")) + tuple(token["id"] for token in added if token["content"] == eos)
    return tuple(dict.fromkeys(ids))


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _weight_files(path: Path) -> Iterator[Path]:
    index = path / "model.safetensors.index.json"
    names = sorted(set(_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    for name in names:
        if Path(name).name != name or not (path / name).is_file():
            raise ModelError(f"{path / name} is missing: expected safetensors weights")
        yield path / name


def _digest(path: Path, weights: Iterable[Path]) -> str:
    total = hashlib.sha256((path / "config.json").read_bytes())
    for file in weights:
        total.update(_file_digest(file).encode())
    return total.hexdigest()


def _file_digest(file: Path) -> str:
    """Hash a weight file once: the hub names its blobs by hash, and others are remembered by place, size and time."""
    blob = file.resolve()
    if blob.parent.name == "blobs" and len(blob.name) == 64:
        return blob.name
    status = blob.stat()
    identity = f"{blob}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}"
    note = fetch.cache_dir() / "digests" / hashlib.sha256(identity.encode()).hexdigest()
    if note.exists() and len(known := note.read_text()) == 64:
        return known
    with blob.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest)
    except OSError as error:
        raise ModelError(f"cannot write the model cache {note.parent}: {error}; set TOLLGATE_CACHE") from error
    return digest


def main() -> int:
    """Prepare the configured model and print its folder."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        folder = resolve_model(EngineConfig.from_env())
    except EngineError as error:
        print(f"tollgate: {error}", file=sys.stderr)
        return 1
    print(f"{folder.name}: {folder.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
