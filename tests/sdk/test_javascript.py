"""The suite of the npm package `openai`, in tests/sdk/js: each of its cases is a test here."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.product import ROOT
from tests.sdk.place import Place
from tests.sdk.tls import behind_tls

FOLDER = ROOT / "tests" / "sdk" / "js"
SECONDS = 240


class Outcome(NamedTuple):
    """What came of a case, and why where it failed."""

    is_good: bool
    why: str


CASES = [
    (path.name, name)
    for path in sorted(FOLDER.glob("*.test.js"))
    for name in re.findall(r'^test\("(.+?)",', path.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="session")
def outcomes(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    """Run the suite once; return the outcome of each case by file and name."""
    with behind_tls(place.base_url, tmp_path_factory.mktemp("tls")) as secured:
        files = sorted(path.name for path in FOLDER.glob("*.test.js"))
        done = subprocess.run(
            ["node", "--test", "--test-reporter=./reporter.js", *files],
            cwd=FOLDER,
            env=os.environ | node_on_path() | {"SDK_PLACE": json.dumps(place.for_javascript(secured))},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told, done.stderr
    return {(Path(one["file"]).name, one["name"]): Outcome(one["ok"], one["why"]) for one in told}


def node_on_path() -> dict[str, str]:
    """Return PATH with the environment's own Node in it, which set-up brings where the system has none."""
    return {"PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("file", "name"), CASES, ids=[f"{file.removesuffix('.test.js')}: {name}" for file, name in CASES]
)
def test_javascript(outcomes: dict[tuple[str, str], Outcome], file: str, name: str) -> None:
    """A case of the JavaScript suite passes."""
    outcome = outcomes.get((file, name))
    assert outcome is not None, f"{file} has no such case: it broke off before"
    assert outcome.is_good, outcome.why


def test_there_are_enough_cases() -> None:
    """Names are unique within a file, and the suite is as broad as the Python SDK's."""
    assert len(set(CASES)) == len(CASES) >= 60
