"""Time to first token of a long prompt, cold against held in the prefix cache: `python -m bench.prefix`.

The whole product as a client sees it: `manage.py up` with the default model, streaming chat completions over HTTP on a
kept connection. A request is a system message of 1,200 tokens and a short new question. The cases take turns after a
warm-up:

    cold     the system message is new
    held     the tenant has sent it before
    shared   it is registered for a share group, another member has sent it, and this is the tenant's first time

The time runs from sending the request to the first chunk with text in it. Medians are shown; every request goes to
bench/results/prefix.csv.
"""

import argparse
import csv
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.model.folder import resolve_model
from tenants.reports import STATS_KEY, WorkerStats
from tests.product import RunningProduct, running_product, wait_for

RESULTS = Path(__file__).parent / "results" / "prefix.csv"
PREFIX_TOKENS = 1200
BLOCK_TOKENS = 16
TARGET = 1 / 15  # of the cold time
WARM_UP = 3
GROUP = "bench-prefix"
WORDS = (
    "harbour morning boats quay woman crates oranges number captain letter window river table winter garden bridge "
    "music paper engine market children mountain story evening candle silver question answer island road summer teacher"
)


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it."""

    case: str
    seconds: float  # to the first text
    prompt_tokens: int
    cached_tokens: int


class Texts:
    """System messages of `PREFIX_TOKENS` tokens and short questions, none of which comes twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = WORDS.split()
        self._tokenizer = Tokenizer.from_str(resolve_model(EngineConfig.from_env()).tokenizer_json.decode())

    def system(self) -> str:
        """Return a new system message."""
        words = " ".join(self._random.choices(self._words, k=PREFIX_TOKENS))
        return str(self._tokenizer.decode(self._tokenizer.encode(words).ids[:PREFIX_TOKENS]))

    def question(self) -> str:
        """Return a new question of some five tokens."""
        return f"What of {' '.join(self._random.choices(self._words, k=2))}?"


class Client:
    """Sends streaming chat requests and times their first text."""

    def __init__(self, product: RunningProduct) -> None:
        self._model = product.serve["model"]
        self._http = httpx.Client(base_url=product.serve["base_url"], timeout=120)

    def ask(self, case: str, key: str, system: str, question: str) -> Answer:
        """Send one request, read it to its end and return how it went."""
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        seconds, usage = 0.0, {}
        headers = {"authorization": f"Bearer {key}"}
        with self._http.stream("POST", "chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                raise SystemExit(f"{response.status_code}: {response.read().decode()}")
            for chunk in _chunks(response.iter_lines()):
                if not seconds and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    seconds = time.perf_counter() - began
                usage = chunk.get("usage") or usage
        if not seconds:
            raise SystemExit("the answer had no text")
        return Answer(case, seconds, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def _chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


class Operator:
    """Registers prefixes for a share group of both demo tenants."""

    def __init__(self, product: RunningProduct) -> None:
        origin = product.serve["base_url"].removesuffix("/v1")
        headers = {"authorization": f"Bearer {product.serve['operator']['api_key']}"}
        self._http = httpx.Client(base_url=f"{origin}/api/v1", headers=headers, timeout=20)
        self._store: redis.Redis[bytes] = redis.Redis.from_url(product.redis_url())
        self._call("POST", "/share-groups/", json={"name": GROUP, "kv_hard_bytes": 512 << 20})
        for slug in product.serve["tenants"]:
            path = f"/tenants/{slug}/policy/"
            match = {"if-match": f'"{self._call("GET", path)["version"]}"'}
            version = self._call("PATCH", path, json={"share_group": GROUP}, headers=match)["version"]
            wait_for(lambda version=version: self._is_applied(version), 60, f"version {version} on the worker")

    def register(self, systems: Sequence[str]) -> None:
        """Register system messages and wait until the worker has them; at most 64."""
        for number, system in enumerate(systems):
            body = {"name": f"measured {number}", "messages": [{"role": "system", "content": system}]}
            self._call("POST", f"/share-groups/{GROUP}/prefixes/", json=body)
        wait_for(lambda: self._num_prefixes() == len(systems), 120, "the prefixes on the worker")

    def _is_applied(self, version: int) -> bool:
        acks = self._call("GET", f"/policy-versions/{version}/acks/")
        return acks["of"] > 0 and acks["applied"] == acks["of"]

    def _num_prefixes(self) -> int:
        """Return how many of the group's prefixes a worker has."""
        for key in self._store.scan_iter(STATS_KEY.format(worker_id="*")):
            stats = msgspec.json.decode(self._store.get(key) or b"null", type=WorkerStats | None)
            for use in stats.share_groups if stats is not None else ():
                if use.name == GROUP:
                    return use.num_prefixes
        return 0

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._http.request(method, path, **options)
        if not response.is_success:
            raise SystemExit(f"{method} {path}: {response.status_code}: {response.text}")
        return dict(response.json())


def measure(product: RunningProduct, texts: Texts, repeats: int) -> list[Answer]:
    """Let the cases take turns, each going first in its turn."""
    client = Client(product)
    key, other = (product.serve["tenants"][slug]["api_key"] for slug in ("minnow", "whale"))
    held = texts.system()
    registered = [texts.system() for _ in range(WARM_UP + repeats)]
    Operator(product).register(registered)

    def shared() -> Answer:
        system = registered.pop()
        client.ask("first of the group", other, system, texts.question())
        return client.ask("shared", key, system, texts.question())

    cases: list[Callable[[], Answer]] = [
        lambda: client.ask("cold", key, texts.system(), texts.question()),
        lambda: client.ask("held", key, held, texts.question()),
        shared,
    ]
    answers: list[Answer] = []
    for repeat in range(WARM_UP + repeats):
        turn = repeat % len(cases)
        found = [ask() for ask in (*cases[turn:], *cases[:turn])]
        answers += found if repeat >= WARM_UP else []
    return answers


def check(answers: list[Answer]) -> None:
    """Make sure that what is called cold, held and shared was."""
    for answer in answers:
        whole = PREFIX_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
        wrong = answer.cached_tokens > BLOCK_TOKENS if answer.case == "cold" else answer.cached_tokens < whole
        if wrong:
            raise SystemExit(f"not {answer.case}: {answer.cached_tokens} of {answer.prompt_tokens} tokens were cached")


def report(answers: list[Answer]) -> None:
    """Print a line for each case, and its time as a part of cold."""
    print(f"{'case':12}{'p25':>10}{'median':>10}{'p75':>10}{'prompt':>9}{'cached':>9}{'of cold':>10}{'target':>8}")
    cold = statistics.median(one.seconds for one in answers if one.case == "cold")
    for case in dict.fromkeys(answer.case for answer in answers):
        own = [answer for answer in answers if answer.case == case]
        low, median, high = statistics.quantiles([one.seconds * 1000 for one in own], n=4, method="inclusive")
        prompt = statistics.median(one.prompt_tokens for one in own)
        cached = statistics.median(one.cached_tokens for one in own)
        line = f"{case:12}{low:>7.1f} ms{median:>7.1f} ms{high:>7.1f} ms{prompt:>9.0f}{cached:>9.0f}"
        ratio = cold * 1000 / median
        print(line if case == "cold" else f"{line}{f'1/{ratio:.1f}':>10}{f'1/{1 / TARGET:.0f}':>8}")


def main() -> None:
    """Start the product, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=15, help="requests of each case, at most 60")
    parser.add_argument("--seed", type=int, default=1, help="of the texts")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name,
        running_product(Path(name) / "var", {"ENGINE_KV_BYTES": "1GiB"}) as product,
    ):
        answers = measure(product, Texts(options.seed), options.repeats)
    check(answers)
    report(answers)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("case", "time_to_first_token_ms", "prompt_tokens", "cached_tokens"))
        writer.writerows(
            (one.case, f"{one.seconds * 1000:.2f}", one.prompt_tokens, one.cached_tokens) for one in answers
        )
    print(f"every request: {RESULTS}")


if __name__ == "__main__":
    main()
