"""The examples in docs/api, run as a reader would run them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.wire.stack import ROOT, Stack, TenantInTest

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
END = "--- end of a block ---"


@pytest.fixture(scope="session")
def serve(shared_stack: Stack) -> dict[str, Any]:
    """What `var/serve.json` holds, of tenants by the names that the pages use."""
    tenants = {}
    for slug in ("minnow", "whale"):
        made = TenantInTest(shared_stack, str(shared_stack.seed(do="tenant", slug=slug, fields={})["id"]), slug)
        tenants[slug] = {"api_key": made.key(), "slug": slug}
    operator = {"api_key": str(shared_stack.seed(do="operator")["secret"])}
    return {"base_url": f"{shared_stack.url}/v1", "model": "tiny", "operator": operator, "tenants": tenants}


@pytest.fixture
def folder(stack: Stack, serve: dict[str, Any], tmp_path: Path) -> Iterator[Path]:
    """A folder with a `var/serve.json` as `make serve` leaves it."""
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "serve.json").write_text(json.dumps(serve))
    yield tmp_path
    with stack.http(serve["operator"]["api_key"]) as client:  # where a page broke off
        client.delete("/api/v1/share-groups/harbour/", params={"detach": "true"})


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def answers(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that stand in a row in `text`."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(folder: Path, page: Path) -> None:
    """A page's Python runs from its first block to its last."""
    program = "\n".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_curl_examples_answer(folder: Path, page: Path) -> None:
    """A page's commands run from its first block to its last; none is refused, and what generates gets choices."""
    commands = blocks(page, "sh")
    script = "set -e\n" + "".join(f"{command}\necho '{END}'\n" for command in commands)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *outputs, rest = done.stdout.split(END)
    assert (len(outputs), rest.strip()) == (len(commands), "")
    for command, output in zip(commands[1:], outputs[1:], strict=True):
        told = answers(output)
        assert told or "-X DELETE" in command, command
        assert not any("error" in answer for answer in told), output
        assert "/completions" not in command or all(answer["choices"] for answer in told), output
