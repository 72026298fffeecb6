"""Policies while processes are killed at any moment: what was committed holds, the newest version wins."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.flows.test_policy_change import Operator
from tests.product import RunningProduct, running_product, wait_for

pytestmark = pytest.mark.chaos

MIB = 1 << 20
VICTIMS = {"postgres": "postgres", "controller": "manage.py controller", "engine": "-m engine"}


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory, tiny_env: dict[str, str]) -> Iterator[RunningProduct]:
    """A product whose processes are killed, and come back."""
    with running_product(tmp_path_factory.mktemp("shaken") / "var", tiny_env) as running:
        yield running


@pytest.fixture
def operator(shaken: RunningProduct) -> Iterator[Operator]:
    """The operator, at minnow's policy."""
    operator = Operator(shaken, "minnow")
    with operator.http:
        yield operator


def kill(product: RunningProduct, victim: str) -> None:
    """Kill -9 a program, all of its processes at once."""
    pids: list[int] = []

    def is_there() -> bool:  # it may be on its way back
        pids[:] = [pid for pid, command in product.processes().items() if is_of(victim, command)]
        return bool(pids)

    wait_for(is_there, 90, victim, lambda: str(product.processes()))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it went with the one before
            os.kill(pid, signal.SIGKILL)


def is_of(victim: str, command: str) -> bool:
    """Whether a command line is of a program's; Postgres' children are called by what they do."""
    if victim == "postgres":
        return command.startswith("postgres:") or "/bin/postgres " in command
    return VICTIMS[victim] in command and "tether" not in command


def read(operator: Operator) -> dict[str, Any]:
    """Return the policy in force, once it can be read."""
    found: dict[str, Any] = {}

    def is_readable() -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = operator.http.get(operator.path)
            assert answer.status_code in (200, 503), answer.text
            if answer.is_success:
                found.update(answer.json())
        return bool(found)

    wait_for(is_readable, 90, "the policy to be readable")
    return found


def write(operator: Operator, version: int, hard: int) -> dict[str, Any]:
    """Write a limit, again and again until it is answered; return the policy that came of it."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            headers = {"if-match": f'"{version}"'}
            answer = operator.http.patch(operator.path, json={"kv_hard_bytes": hard}, headers=headers)
            if answer.is_success:
                return dict(answer.json())
            assert answer.status_code in (412, 503), answer.text
        before = read(operator)  # the answer may have been lost, and not the write
        if before["kv_hard_bytes"] == hard:
            return before
        version = before["version"]


def wait_settled(operator: Operator, version: int) -> None:
    """Wait until the worker holds a version and nobody is above its limits, whatever is still on its way back."""

    def is_settled() -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = operator.http.get(f"/policy-versions/{version}/acks/")
            if answer.is_success:
                acks = answer.json()
                return bool(acks["of"] == acks["applied"] == acks["settled"] == 1)
        return False

    wait_for(is_settled, 90, f"version {version} to settle", operator.product.told)


def test_postgres_killed_and_back(shaken: RunningProduct, operator: Operator) -> None:
    """A running stream ends whole, what was committed is there, the next change is applied, and usage arrives."""
    access = shaken.serve["tenants"]["minnow"]
    committed = write(operator, read(operator)["version"], 200 * MIB)
    wait_settled(operator, committed["version"])
    url, key = shaken.serve["base_url"], access["api_key"]
    # It may have to try again: the test before may have killed the engine, to which web has to find back.
    with openai.OpenAI(base_url=url, api_key=key, max_retries=9, timeout=60) as client:
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1500}
        stream = client.completions.create(
            model=shaken.serve["model"], prompt="hello", extra_body={"ignore_eos": True}, **options
        )
        next(iter(stream))
        kill(shaken, "postgres")
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 1500
    assert read(operator) == committed
    changed = write(operator, committed["version"], 210 * MIB)
    assert changed["version"] > committed["version"]
    wait_settled(operator, changed["version"])

    def tokens() -> list[int]:
        with contextlib.suppress(httpx.TransportError):
            answer = operator.http.get("/usage/", params={"tenant": "minnow"})
            if answer.is_success:
                return [record["completion_tokens"] for record in answer.json()["data"]]
        return []

    wait_for(lambda: tokens().count(1500) == 1, 90, "the stream's usage", lambda: str(tokens()))


def test_the_newest_version_wins_whoever_is_killed(shaken: RunningProduct, operator: Operator) -> None:
    """Before, while and after a change is written and pushed any process may die: in the end the change is in force."""
    choose = random.Random(11)
    version = read(operator)["version"]
    for number, victim in enumerate(["controller", "postgres", "engine"] * 2):
        hard = (150 + number) * MIB
        if number % 2:
            kill(shaken, victim)
            written = write(operator, version, hard)
        else:
            written = write(operator, version, hard)
            time.sleep(choose.random() / 20)  # on its way
            kill(shaken, victim)
        assert (written["kv_hard_bytes"], written["version"] > version) == (hard, True)
        version = written["version"]
    assert (read(operator)["version"], read(operator)["kv_hard_bytes"]) == (version, 155 * MIB)
    wait_settled(operator, version)
