"""The examples in docs/api, run as a reader would run them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.wire.stack import ROOT, Stack, TenantInTest

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))


@pytest.fixture
def folder(stack: Stack, tenant: TenantInTest, tmp_path: Path) -> Path:
    """A folder with a `var/serve.json` as `make serve` leaves it."""
    serve = {"base_url": f"{stack.url}/v1", "model": "tiny", "tenants": {"minnow": {"api_key": tenant.key()}}}
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "serve.json").write_text(json.dumps(serve))
    return tmp_path


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(folder: Path, page: Path) -> None:
    """A page's Python runs from its first block to its last."""
    program = "\n".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_curl_examples_answer(folder: Path, page: Path) -> None:
    """Each of a page's curl commands gets choices, after the lines that find address, model and key."""
    prelude, *commands = blocks(page, "sh")
    assert commands
    for command in commands:
        script = f"set -e\n{prelude}\n{command}"
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["choices"], done.stdout
