"""`manage.py up` broken in every way: nothing is left behind, nothing is lost, and each refusal says what to do."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenants.keys import parse_key
from tests.product import RunningProduct, running_product, start_product, wait_for

pytestmark = pytest.mark.chaos

PROGRAMS = {"postgres", "redis", "engine", "controller", "celery", "beat", "web"}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, tiny_env: dict[str, str]) -> Iterator[RunningProduct]:
    """A product with two web processes, for tests after which it stands as before."""
    var_dir = tmp_path_factory.mktemp("standing") / "var"
    with running_product(var_dir, tiny_env | {"WEB_WORKERS": "2"}) as running:
        yield running


@pytest.fixture
def broken(tmp_path: Path, tiny_env: dict[str, str]) -> Iterator[RunningProduct]:
    """A running product that the test may break."""
    with running_product(tmp_path / "var", tiny_env) as running:
        yield running


def _sockets(product: RunningProduct) -> list[Path]:
    return [path for path in product.var_dir.rglob("*") if path.is_socket()]


def _tenants(product: RunningProduct) -> list[str]:
    url = product.serve["console_url"] + "api/v1/tenants/"
    key = product.serve["operator"]["api_key"]
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return sorted(tenant["slug"] for tenant in json.load(answer)["data"])


def _pids(product: RunningProduct, command: str) -> set[int]:
    """Return the pids of the processes whose command line contains `command`."""
    return {pid for pid, line in product.processes().items() if command in line}


def test_sigterm_leaves_no_process_and_no_socket_and_a_restart_finds_the_data(
    tmp_path: Path, tiny_env: dict[str, str]
) -> None:
    """An orderly end takes seconds and cleans up; the next start has the same tenants, passwords and keys."""
    with running_product(tmp_path / "var", tiny_env) as first:
        assert _tenants(first) == ["minnow", "whale"]
        assert {path.stem for path in (first.var_dir / "log").glob("*.log")} >= PROGRAMS
        assert (first.var_dir / "serve.json").stat().st_mode & 0o777 == 0o600
        assert first.stop() == 0
        assert first.processes() == {}
        assert _sockets(first) == []
        assert not (first.var_dir / "serve.json").exists()
    with running_product(tmp_path / "var", tiny_env) as second:
        assert _tenants(second) == ["minnow", "whale"]
        same = ("operator", "tenants")
        assert {name: second.serve[name] for name in same} == {name: first.serve[name] for name in same}


def test_a_revoked_demo_key_has_a_working_successor_after_a_restart(tmp_path: Path, tiny_env: dict[str, str]) -> None:
    """`serve.json` shows keys that work, whatever was revoked meanwhile; the next restart changes no key again."""
    with running_product(tmp_path / "var", tiny_env) as first:
        dead = [first.serve["tenants"]["minnow"]["api_key"], first.serve["operator"]["api_key"]]
        _revoke(first, f"tenants/minnow/keys/{_key_id(dead[0])}/")
        _revoke(first, f"management-keys/{_key_id(dead[1])}/")
        wait_for(lambda: _models(first, dead[0]) == 401, 60, "the revocation to reach the web process")
        assert first.stop() == 0
    with running_product(tmp_path / "var", tiny_env) as second:
        accounts = [second.serve["operator"], *second.serve["tenants"].values()]
        assert not {account["api_key"] for account in accounts} & set(dead)
        assert second.serve["tenants"]["whale"] == first.serve["tenants"]["whale"]
        assert _models(second, second.serve["tenants"]["minnow"]["api_key"]) == 200
        assert _tenants(second) == ["minnow", "whale"]
        assert second.stop() == 0
    with running_product(tmp_path / "var", tiny_env) as third:
        assert [third.serve["operator"], third.serve["tenants"]] == [second.serve["operator"], second.serve["tenants"]]


def _key_id(raw: str) -> str:
    parsed = parse_key(raw)
    assert parsed is not None
    return parsed.key_id


def _revoke(product: RunningProduct, path: str) -> None:
    request = urllib.request.Request(product.serve["console_url"] + "api/v1/" + path, method="DELETE")
    request.add_header("Authorization", f"Bearer {product.serve['operator']['api_key']}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in (200, 204)


def _models(product: RunningProduct, key: str) -> int:
    request = urllib.request.Request(product.serve["base_url"] + "/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_curl_line_of_the_banner_works(standing: RunningProduct) -> None:
    """What `up` prints as a first request is one, as printed."""
    lines = re.search(r"curl -N.*?'\n", standing.said(), re.DOTALL)
    assert lines is not None, standing.said()
    command, answers = lines[0], [""]

    def is_served() -> bool:  # the test before may have killed the engine, which is then on its way back
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
        answers.append(done.stdout)
        return done.stdout.rstrip().endswith("data: [DONE]")

    wait_for(is_served, 90, "an answer", lambda: answers[-1])


def _kill_and_wait(product: RunningProduct, command: str) -> None:
    assert len(product.processes()) > len(PROGRAMS)
    for pid in _pids(product, command):
        os.kill(pid, signal.SIGKILL)
    product.process.wait(90)
    wait_for(lambda: not product.processes(), 90, "the processes to end", lambda: str(product.processes()))


def test_a_kill_of_up_leaves_no_process_and_the_next_start_works(
    broken: RunningProduct, tiny_env: dict[str, str]
) -> None:
    """`kill -9` takes every process along; stale sockets, locks and an unclean database are no obstacle afterwards."""
    _kill_and_wait(broken, "manage.py up")
    assert _sockets(broken) != []  # nobody could tidy up
    with running_product(broken.var_dir, tiny_env) as again:
        assert _tenants(again) == ["minnow", "whale"]


def test_a_kill_of_supervisord_ends_up_too(broken: RunningProduct) -> None:
    """`kill -9` of supervisord takes every process along, and `up` says so and tidies up."""
    _kill_and_wait(broken, "gateway.embedded.supervisord")
    assert broken.process.returncode == 1
    assert "supervisord stopped" in broken.said()
    assert not (broken.var_dir / "serve.json").exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [("gateway.asgi:application", "web"), ("manage.py controller", "controller"), ("-m engine ", "engine")],
)
def test_a_killed_process_comes_back(standing: RunningProduct, command: str, name: str) -> None:
    """Supervisord starts it again, and meanwhile no connection is refused."""
    before = _pids(standing, command)
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    assert _tenants(standing) == ["minnow", "whale"]

    def is_back() -> bool:
        now = _pids(standing, command)
        return len(now) == len(before) and killed not in now

    wait_for(is_back, 90, f"{name} to come back", lambda: str(standing.processes()))


def test_a_second_instance_is_refused(standing: RunningProduct, tiny_env: dict[str, str]) -> None:
    """Same folder, another port: one line, exit status 2, and the first one goes on."""
    second = start_product(standing.var_dir, tiny_env)
    assert second.process.wait(90) == 2
    assert _only_line(second).startswith("tollgate: Tollgate already runs from")
    assert _tenants(standing) == ["minnow", "whale"]


def test_a_busy_port_is_refused(tmp_path: Path, tiny_env: dict[str, str]) -> None:
    """One line that says how to choose another one, exit status 2, nothing started."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        product = start_product(tmp_path / "var", tiny_env, port=other.getsockname()[1])
        assert product.process.wait(90) == 2
    assert "is taken" in _only_line(product)
    assert "PORT=" in _only_line(product)
    assert product.processes() == {}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, tiny_env: dict[str, str]) -> None:
    """One line that names the folder and the setting, exit status 2."""
    (tmp_path / "file").write_text("")
    product = start_product(tmp_path / "file" / "var", tiny_env, output=tmp_path / "out")
    assert product.process.wait(90) == 2
    assert "TOLLGATE_VAR" in _only_line(product)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, tiny_env: dict[str, str]) -> None:
    """The folder may be ours and a file in it not: one line that names the file, exit status 2, nothing left."""
    (tmp_path / "var" / "run" / "supervisor.conf").mkdir(parents=True)
    product = start_product(tmp_path / "var", tiny_env)
    assert product.process.wait(90) == 2
    line = product.said().strip().splitlines()[-1]
    assert "supervisor.conf" in line
    assert "TOLLGATE_VAR" in line
    assert "Traceback" not in product.said()
    assert product.processes() == {}


def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    """A setting that cannot be read is one line, exit status 2."""
    product = start_product(tmp_path / "var", {"PORT": "many"})
    assert product.process.wait(90) == 2
    assert "PORT" in _only_line(product)


def test_a_model_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    """`up` says which process failed and why, stops the others, and does not hang."""
    product = start_product(tmp_path / "var", {"ENGINE_MODEL": str(tmp_path / "no-such-model")})
    assert product.process.wait(120) == 1
    assert "engine could not start" in product.said()
    assert "no-such-model" in product.said()
    assert product.processes() == {}
    assert _sockets(product) == []


def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path, tiny_env: dict[str, str]) -> None:
    """SIGTERM before anything is ready ends as cleanly as later."""
    product = start_product(tmp_path / "var", tiny_env)
    wait_for(
        lambda: any("gateway.embedded.supervisord" in command for command in product.processes().values()),
        90,
        "supervisord",
        product.said,
    )
    assert product.stop() == 0
    assert product.processes() == {}
    assert _sockets(product) == []


def test_two_web_processes_share_the_port(standing: RunningProduct) -> None:
    """`WEB_WORKERS=2`: with one of them frozen the other one answers."""
    frozen = min(_pids(standing, "gateway.asgi:application"))
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_for(lambda: _answers_quickly(standing), 90, "the other web process")
    finally:
        os.kill(frozen, signal.SIGCONT)


def _answers_quickly(product: RunningProduct) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(product.serve["console_url"] + "healthz", timeout=2):
        return True
    return False


def _only_line(product: RunningProduct) -> str:
    lines = product.said().strip().splitlines()
    assert len(lines) == 1, product.said()
    return lines[0]
