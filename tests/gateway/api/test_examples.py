"""The examples in docs/api, run as a reader would run them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.wire.stack import ROOT, Stack, TenantInTest

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
PACKAGES = ROOT / "tests" / "sdk" / "js" / "node_modules"  # npm's `openai` and `ws`, which readers install
END = "--- end of a block ---"


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def pages_with(language: str) -> pytest.MarkDecorator:
    """Return the mark that makes a test of each page that has such blocks."""
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


@pytest.fixture(scope="session")
def serve(shared_stack: Stack) -> dict[str, Any]:
    """What `var/serve.json` holds, of tenants by the names that the pages use."""
    tenants = {}
    for slug in ("minnow", "whale"):
        made = TenantInTest(shared_stack, str(shared_stack.seed(do="tenant", slug=slug, fields={})["id"]), slug)
        tenants[slug] = {"api_key": made.key(), "slug": slug}
    operator = {"api_key": str(shared_stack.seed(do="operator")["secret"])}
    ws_url = f"{shared_stack.url.replace('http', 'ws', 1)}/v1/realtime"
    return {
        "base_url": f"{shared_stack.url}/v1",
        "ws_url": ws_url,
        "model": "tiny",
        "operator": operator,
        "tenants": tenants,
    }


@pytest.fixture
def folder(stack: Stack, serve: dict[str, Any], tmp_path: Path) -> Iterator[Path]:
    """A folder with a `var/serve.json` as `make serve` leaves it."""
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "serve.json").write_text(json.dumps(serve))
    yield tmp_path
    with stack.http(serve["operator"]["api_key"]) as client:  # where a page broke off
        client.delete("/api/v1/share-groups/harbour/", params={"detach": "true"})


def answers(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that stand in a row in `text`, or those of a stream's events."""
    if text.lstrip().startswith(("data: ", "event: ")):
        data = re.findall(r"^data: (.*)$", text, re.MULTILINE)
        return [json.loads(one) for one in data if one != "[DONE]"]
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


@pages_with("python")
def test_python_examples_run(folder: Path, page: Path) -> None:
    """A page's Python runs from its first block to its last."""
    program = "\n".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pages_with("js")
def test_javascript_examples_run(folder: Path, page: Path) -> None:
    """So does a page's JavaScript."""
    (folder / "node_modules").symlink_to(PACKAGES)
    (folder / "page.mjs").write_text("\n".join(blocks(page, "js")))
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"  # Node is there where the system has none
    done = subprocess.run(
        ["node", "page.mjs"],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pages_with("sh")
def test_curl_examples_answer(folder: Path, page: Path) -> None:
    """A page's commands run from its first block to its last; none is refused, and what generates gets choices."""
    commands = blocks(page, "sh")
    script = "set -e\n" + "".join(f"{command}\necho '{END}'\n" for command in commands)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *outputs, rest = done.stdout.split(END)
    assert (len(outputs), rest.strip()) == (len(commands), "")
    for command, output in zip(commands[1:], outputs[1:], strict=True):
        told = answers(output)
        assert told or "-X DELETE" in command, command
        assert not any(answer.get("error") for answer in told), output
        assert "/completions" not in command or all(answer["choices"] for answer in told), output
