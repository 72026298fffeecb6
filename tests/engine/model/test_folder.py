"""Reading a model folder: what the front and the gateway learn from it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.model.folder import read_folder, resolve_model
from tests.engine.tiny_model import make_tiny_model


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model folder, and a cache of the test's own."""
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path / "cache"))
    return make_tiny_model(tmp_path / "tiny")


def test_reads_what_serving_needs(path: Path) -> None:
    """Name, limits, tokenizer, template and end tokens come from the folder."""
    folder = resolve_model(EngineConfig(model=str(path)))
    assert (folder.name, folder.architecture, folder.vocab_size) == ("tiny", "LlamaForCausalLM", 384)
    assert folder.max_context_tokens == 2048
    assert folder.eos_token_ids == (2,)
    assert folder.special_tokens["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in folder.chat_template
    assert json.loads(folder.tokenizer_json)["model"]["type"] == "BPE"


def test_public_name_and_context_follow_the_settings(path: Path) -> None:
    """ENGINE_MODEL_NAME renames the model; ENGINE_MAX_CONTEXT lowers its context and cannot raise it."""
    folder = resolve_model(EngineConfig(model=str(path), model_name="ours", max_context=100))
    assert (folder.name, folder.max_context_tokens) == ("ours", 100)
    with pytest.raises(ConfigError, match=r"ENGINE_MAX_CONTEXT=4096.*2048"):
        resolve_model(EngineConfig(model=str(path), max_context=4096))


def test_digest_follows_content(path: Path, tmp_path: Path) -> None:
    """Equal files have equal digests wherever they lie; other weights have another."""
    digest = read_folder(path, name="a").digest
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    assert read_folder(copy, name="b").digest == digest
    assert read_folder(make_tiny_model(tmp_path / "other", seed=1), name="c").digest != digest
    make_tiny_model(copy, seed=1)  # in place, same sizes
    assert read_folder(copy, name="b").digest != digest


def test_end_tokens_of_generation_config_win(path: Path) -> None:
    """generation_config's list is what ends a generation; without one, config's and the tokenizer's own do."""
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_folder(path, name="a").eos_token_ids == (7, 9)
    (path / "generation_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    assert read_folder(path, name="a").eos_token_ids == (0, 2)


def test_template_of_the_tokenizer_config(path: Path) -> None:
    """A template in tokenizer_config.json serves when there is no file; of several the default one."""
    (path / "chat_template.jinja").unlink()
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    for value, expected in ((named, "yes"), ("plain", "plain"), (None, "")):
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"chat_template": value}))
        assert read_folder(path, name="a").chat_template == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", "{", r"config\.json is not valid JSON"),
        ("config.json", "[]", "expected a JSON object"),
        ("tokenizer.json", None, "AutoTokenizer.save_pretrained"),
        ("model.safetensors", None, "expected safetensors weights"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../../secret"}}', "secret"),
    ],
)
def test_broken_folder_is_refused(path: Path, name: str, content: str | None, message: str) -> None:
    """A missing or broken file is named, with what to do."""
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        read_folder(path, name="a")


@pytest.mark.parametrize("model", ["./nowhere", "missing.gguf", "no-such-name", "a/b/c"])
def test_unknown_model_is_refused(model: str) -> None:
    """What is no folder, file or hub id is refused with the setting's name."""
    with pytest.raises(ModelError, match="ENGINE_MODEL="):
        resolve_model(EngineConfig(model=model))


def test_stays_free_of_torch(path: Path) -> None:
    """Resolving a model imports no torch, so that the front stays small."""
    script = (
        "import sys; from engine.config import EngineConfig; from engine.model.folder import resolve_model\n"
        "resolve_model(EngineConfig(model=sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, cwd=Path(__file__).parents[3])
