"""Time to first token of a long prompt, cold against held in the prefix cache: `python -m bench.prefix`.

The whole product as a client sees it: `manage.py up` with the default model, streaming chat completions over HTTP on a
kept connection. A request is a system message of 1,200 tokens and a short new question. Cold and held requests take
turns after a warm-up: the system message of a cold one is new, that of a held one has been sent before.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.model.folder import resolve_model
from tests.product import RunningProduct, running_product

RESULTS = Path(__file__).parent / "results" / "prefix.csv"
PREFIX_TOKENS = 1200
BLOCK_TOKENS = 16
TARGET = 1 / 15  # of the cold time
WARM_UP = 2
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


def _chunks(lines: Iterator[str]) -> Iterator[dict]:  # type: ignore[type-arg]  # as the wire has it
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def measure(client: Client, key: str, texts: Texts, repeats: int) -> list[Answer]:
    """Let cold and held requests take turns, each going first every other time."""
    held = texts.system()
    for _ in range(WARM_UP):
        client.ask("warm-up", key, texts.system(), texts.question())
        client.ask("warm-up", key, held, texts.question())
    cases: list[Callable[[], Answer]] = [
        lambda: client.ask("cold", key, texts.system(), texts.question()),
        lambda: client.ask("held", key, held, texts.question()),
    ]
    answers = []
    for repeat in range(repeats):
        answers += [ask() for ask in (cases if repeat % 2 == 0 else cases[::-1])]
    return answers


def check(answers: list[Answer]) -> None:
    """Make sure that what is called cold and held was."""
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
    parser.add_argument("--repeats", type=int, default=15, help="requests of each case")
    parser.add_argument("--seed", type=int, default=1, help="of the texts")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name,
        running_product(Path(name) / "var", {"ENGINE_KV_BYTES": "1GiB"}) as product,
    ):
        client, texts = Client(product), Texts(options.seed)
        answers = measure(client, product.serve["tenants"]["minnow"]["api_key"], texts, options.repeats)
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
