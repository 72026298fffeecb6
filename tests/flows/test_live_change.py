"""The story of a limit that does not rest: an operator moves a whale's ceiling up and down while everybody streams.

whales and a minnow ──streams──▶ web ──▶ engine ◀──push── controller ◀──NOTIFY── web ◀──PATCH── operator
no stream notices; what the worker has applied it never exceeds; what was above it is given back, and that is told
"""

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import count

import msgspec
import openai
import pytest
import redis

from tenants.reports import STATS_KEY, TenantUse, WorkerStats
from tests.flows.test_policy_change import Operator
from tests.product import RunningProduct, wait_for

pytestmark = pytest.mark.flow

NUM_WHALES, NUM_CHANGES = 4, 8
WORDS, OUTPUT = 150, 120  # of a whale's prompt; tokens
LOW_BLOCKS, HIGH_BLOCKS = 28, 400  # a whale's stream comes to more than half of the first; all of them fit the second


class Worker:
    """What the worker says of itself, as the controller publishes it."""

    def __init__(self, product: RunningProduct) -> None:
        self._store: redis.Redis[bytes] = redis.Redis.from_url(product.redis_url())

    def stats(self) -> WorkerStats:
        """Return the only worker's last statistics; wait until there are some."""
        found: list[WorkerStats] = []

        def is_there() -> bool:
            for key in self._store.scan_iter(STATS_KEY.format(worker_id="*")):
                found.extend([msgspec.json.decode(kept, type=WorkerStats)] if (kept := self._store.get(key)) else [])
            return bool(found)

        wait_for(is_there, 90, "statistics")
        return found[-1]

    def use_after(self, at: float, tenant_id: str) -> tuple[float, TenantUse]:
        """Return the next statistics' time, which is later than `at`, and a tenant's use in them."""
        seen: list[WorkerStats] = []

        def is_later() -> bool:
            seen.append(self.stats())
            return seen[-1].at > at

        wait_for(is_later, 90, "later statistics")
        return seen[-1].at, next(use for use in seen[-1].tenants if use.tenant_id == tenant_id)

    def close(self) -> None:
        """Leave Redis."""
        self._store.close()


class Swimmer:
    """A client that streams one completion after the other until it is told to stop; each must be whole."""

    def __init__(self, product: RunningProduct, slug: str, *, num_words: int, num_tokens: int) -> None:
        key = product.serve["tenants"][slug]["api_key"]
        self._client = openai.OpenAI(base_url=product.serve["base_url"], api_key=key, max_retries=0, timeout=60)
        self._model = product.serve["model"]
        self._num_words, self._num_tokens = num_words, num_tokens
        self._numbers = count(secrets.randbelow(10**9))

    def swim(self, stop: threading.Event) -> int:
        """Return how many streams there were. Raises what the SDK raises, so any error that reaches it."""
        num_streams = 0
        with self._client:
            while not stop.is_set():
                self._stream()
                num_streams += 1
        return num_streams

    def _stream(self) -> None:
        # Each begins with a number of its own, so that no stream finds another's blocks.
        prompt = f"{next(self._numbers)} " + "the tenant holds the block " * (self._num_words // 5)
        stream = self._client.completions.create(
            model=self._model,
            prompt=prompt,
            max_tokens=self._num_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert reasons == ["length"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == self._num_tokens


@contextmanager
def swimming(swimmers: list[Swimmer]) -> Iterator[list["Future[int]"]]:
    """Let clients stream while the block runs; then let each finish what it has begun."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(swimmers)) as pool:
        futures = [pool.submit(swimmer.swim, stop) for swimmer in swimmers]
        try:
            yield futures
        finally:
            stop.set()


def settled(operator: Operator, version: int) -> dict[str, object]:
    """Wait until the worker has told that nobody is above the limits of a version; return its ack."""
    seen: list[dict[str, object]] = []

    def is_settled() -> bool:
        response = operator.http.get(f"/policy-versions/{version}/acks/")
        assert response.is_success, response.text
        acks = response.json()
        seen.extend(acks["workers"])
        return bool(acks["of"] > 0 and acks["settled"] == acks["of"])

    wait_for(is_settled, 90, f"version {version} to settle", lambda: str(seen[-1:]))
    return seen[-1]


def moment(at: object) -> float:
    """Return unix seconds."""
    return datetime.fromisoformat(str(at)).timestamp()


def test_a_limit_moves_up_and_down_under_load(product: RunningProduct) -> None:
    """No client sees an error, and once a change has settled the tenant never holds more than it allows."""
    with ExitStack() as stack:
        operator = Operator(product, "whale")
        stack.enter_context(operator.http)
        worker = Worker(product)
        stack.callback(worker.close)
        before = operator.policy()
        block_bytes = worker.stats().block_bytes
        swimmers = [Swimmer(product, "whale", num_words=WORDS, num_tokens=OUTPUT) for _ in range(NUM_WHALES)]
        swimmers.append(Swimmer(product, "minnow", num_words=10, num_tokens=8))
        over_bytes: list[int] = []
        try:
            with swimming(swimmers) as streams:
                for number in range(NUM_CHANGES):
                    hard = (LOW_BLOCKS, HIGH_BLOCKS)[number % 2] * block_bytes
                    changed = operator.change(operator.policy()["version"], kv_hard_bytes=hard)
                    acks = operator.applied(changed["version"])
                    ack = settled(operator, changed["version"])
                    over_bytes.append(int(str(ack["over_bytes"])))
                    assert not [stream for stream in streams if stream.done()], "a client has stopped"
                    # What is published may be of before: a peak counts that is since a moment after it settled.
                    at, _ = worker.use_after(moment(ack["settled_at"]), acks["tenant_id"])
                    _, use = worker.use_after(at, acks["tenant_id"])  # its peak is since the one before
                    assert use.kv_peak_bytes <= hard
                    if number % 2:
                        assert over_bytes[-1] == 0
            assert min(stream.result() for stream in streams) > 0
            assert max(over_bytes) > 0, "no change found anybody above it: the whales are too small"
        finally:
            restored = operator.change(operator.policy()["version"], kv_hard_bytes=before["kv_hard_bytes"])
            operator.applied(restored["version"])
