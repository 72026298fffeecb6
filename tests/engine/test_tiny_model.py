"""The tiny checkpoint that other tests build on is real."""

import hashlib
from pathlib import Path

from tests.engine.tiny_model import make_tiny_model, make_tokenizer


def test_tokenizer_round_trips_any_text() -> None:
    """Every byte has a token, so that text in any script survives encode and decode."""
    tokenizer = make_tokenizer()
    text = "naïve 東京 🙂 \t\n\x00 the tenant"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == 384


def test_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    """A checkpoint is a function of its arguments."""
    digests = []
    for name in ("a", "b"):
        folder = make_tiny_model(tmp_path / name, seed=5)
        files = sorted(path for path in folder.iterdir())
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert digests[0] == digests[1]
    other = make_tiny_model(tmp_path / "c", seed=6)
    assert hashlib.sha256((other / "model.safetensors").read_bytes()).hexdigest() != digests[0]["model.safetensors"]
