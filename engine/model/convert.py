"""Turn a GGUF file into a safetensors folder: `python -m engine.model.convert SOURCE.gguf TARGET`."""

import json
import os
import sys
from pathlib import Path


def convert(source: Path, target: Path) -> None:
    """Dequantise `source` to float32 into `target`, with configuration, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32, **_dequantise()
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(target)
    if _pre_tokenizer(source) == "smollm":
        _split_digits(target / "tokenizer.json")
    for path in target.iterdir():
        _sync(path)


def _dequantise() -> dict[str, object]:
    """Ask for dense weights where transformers would keep GGUF blocks; older ones always unpack them."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _pre_tokenizer(source: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(str(source)).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _split_digits(path: Path) -> None:
    """Restore SmolLM's pre-tokenizer, single digits before byte level, of which transformers keeps only the latter."""
    tokenizer = json.loads(path.read_text())
    byte_level = tokenizer["pre_tokenizer"]
    if byte_level["type"] == "ByteLevel":
        digits = {"type": "Digits", "individual_digits": True}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
        path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def _sync(path: Path) -> None:
    """Flush a file to disk, so that the rename that publishes the folder never outruns its content."""
    path.chmod(0o644)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
