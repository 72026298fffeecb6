"""The plugin that serves test runs."""

import subprocess
import sys

import pytest

from gateway.config import ROOT
from tests.services import needs_services

BLOCK_DJANGO = (
    "import sys, pytest\n"
    "class Block:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in ('django', 'psycopg', 'redis', 'pytest_django'):\n"
    "            raise ModuleNotFoundError(name)\n"
    "sys.meta_path.insert(0, Block())\n"
    "sys.exit(pytest.main(['-p', 'no:django', 'tests/engine/test_tiny_model.py']))\n"
)


def test_engine_tests_run_where_no_control_plane_is_installed() -> None:
    """On a bare GPU image there is neither Django nor a database client."""
    done = subprocess.run([sys.executable, "-c", BLOCK_DJANGO], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ([], True),
        (["tests/engine"], False),
        (["tests/kernels/test_x.py::test_y", "tests/engine/memory"], False),
        (["tests/engine", "tests/tenants"], True),
        (["tests"], True),
    ],
)
def test_servers_start_only_for_runs_that_use_them(arguments: list[str], needed: bool) -> None:
    """The paths on the command line decide."""
    assert needs_services(arguments) is needed
