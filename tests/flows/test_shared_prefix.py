"""The story of a shared prefix, through real processes: one tenant's chat computes what another's begins with.

operator ──POST share group, prefix──▶ web ──NOTIFY──▶ controller ──tokens──▶ engine
alpha's chat computes the system prompt on the group's account; beta's first chat finds it; nobody else ever does
"""

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import openai
import pytest
import redis

from tenants.reports import PREFIXES_KEY, STATS_KEY, PrefixReading, ShareGroupUse, WorkerStats
from tests.product import RunningProduct, wait_for

pytestmark = pytest.mark.flow

GROUP = "the-house"
PROMPT = "You are the keeper of the house. The tenant holds the block and the block holds the tokens. " * 4
HARD_BYTES = 4 << 20


class House:
    """An operator who makes a share group, its prefix and its tenants."""

    def __init__(self, product: RunningProduct) -> None:
        origin = product.serve["base_url"].removesuffix("/v1")
        headers = {"authorization": f"Bearer {product.serve['operator']['api_key']}"}
        self.http = httpx.Client(base_url=f"{origin}/api/v1", headers=headers, timeout=60)
        self.store: redis.Redis[bytes] = redis.Redis.from_url(product.redis_url())
        self._product = product
        self._num_registered = 0
        self._clients: list[openai.OpenAI] = []

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Call the management API."""
        response = self.http.request(method, path, **options)
        assert response.is_success, f"{method} {path}: {response.text}"
        return dict(response.json()) if response.content else {}

    def tenant(self, share_group: str = "") -> tuple[str, openai.OpenAI]:
        """Create a tenant; return its slug and a client with a key of it."""
        slug = f"sharer-{secrets.token_hex(4)}"
        self.call("POST", "/tenants/", json={"slug": slug, "name": slug, "policy": {"share_group": share_group}})
        key = self.call("POST", f"/tenants/{slug}/keys/", json={"name": "flow"})["secret"]
        self._clients.append(openai.OpenAI(base_url=self._product.serve["base_url"], api_key=key, max_retries=0))
        return slug, self._clients[-1]

    def member_of(self, slug: str, share_group: str) -> None:
        """Change a tenant's membership and wait until the worker enforces it."""
        path = f"/tenants/{slug}/policy/"
        version = self.call("GET", path)["version"]
        changed = self.call("PATCH", path, json={"share_group": share_group}, headers={"if-match": f'"{version}"'})
        self.applied(changed["version"])

    def register(self, name: str, text: str) -> str:
        """Register a system prompt and return its id once the worker has it."""
        messages = [{"role": "system", "content": text}]
        created = self.call("POST", f"/share-groups/{GROUP}/prefixes/", json={"name": name, "messages": messages})
        wait_for(lambda: created["id"] in self.readings(), 90, "a reading of the prefix", lambda: str(self.readings()))
        self._num_registered += 1
        wait_for(lambda: (use := self.use()) and use.num_prefixes >= self._num_registered, 90, "it on the worker")
        return str(created["id"])

    def applied(self, version: int) -> None:
        """Wait until a version is applied on every live worker."""

        def is_applied() -> bool:
            acks = self.call("GET", f"/policy-versions/{version}/acks/")
            return bool(acks["of"]) and acks["applied"] == acks["of"]

        wait_for(is_applied, 90, f"version {version} on all workers")

    def readings(self) -> dict[str, PrefixReading]:
        """Return what pages know of each prefix, by its id."""
        return {
            reading.prefix_id: reading
            for key in self.store.scan_iter(PREFIXES_KEY.format(worker_id="*"))
            for reading in msgspec.json.decode(self.store.get(key) or b"[]", type=list[PrefixReading])
        }

    def use(self) -> ShareGroupUse | None:
        """Return the group's use of the worker, None before it has it."""
        for key in self.store.scan_iter(STATS_KEY.format(worker_id="*")):
            stats = msgspec.json.decode(self.store.get(key) or b"null", type=WorkerStats | None)
            for use in stats.share_groups if stats is not None else ():
                if use.name == GROUP:
                    return use
        return None

    def close(self) -> None:
        """Remove the group, whoever is in it."""
        self.http.delete(f"/share-groups/{GROUP}/", params={"detach": "true"})
        # The next story's group has the same name: what is told of this one must not be taken for it.
        wait_for(lambda: self.use() is None, 90, "the end of the group's account", lambda: str(self.use()))
        for client in self._clients:
            client.close()
        self.http.close()
        self.store.close()


@pytest.fixture
def house(product: RunningProduct) -> Iterator[House]:
    """A share group with limits and nothing else."""
    house = House(product)
    try:
        limits = {"kv_soft_bytes": HARD_BYTES // 4, "kv_hard_bytes": HARD_BYTES}
        house.call("POST", "/share-groups/", json={"name": GROUP, "description": "flow", **limits})
        yield house
    finally:
        house.close()


def cached(client: openai.OpenAI, model: str, question: str, system: str = PROMPT) -> int:
    """Chat once and return how many tokens of the prompt were held already."""
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    usage = client.chat.completions.create(model=model, messages=messages, max_tokens=2).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def test_a_registered_system_prompt_is_computed_once_for_a_group(product: RunningProduct, house: House) -> None:
    """A member's first chat finds what another member computed; a stranger's, and a former member's, does not."""
    model = product.serve["model"]
    alpha, beta, late, former = (house.tenant(GROUP) for _ in range(4))
    stranger = house.tenant()
    prefix = house.register("keeper", PROMPT)
    shared = house.readings()[prefix].shared_tokens
    assert shared > 100

    assert cached(alpha[1], model, "Who are you?") == 0
    assert shared <= cached(beta[1], model, "What do you hold?") < shared + 16
    assert cached(stranger[1], model, "Who are you?") == 0

    def is_accounted() -> bool:
        use = house.use()
        return use is not None and 0 < use.kv_bytes <= HARD_BYTES and use.prefix_tokens == shared

    wait_for(is_accounted, 90, "the prefix on the group's account", lambda: str(house.use()))

    house.member_of(former[0], "")
    assert cached(former[1], model, "Who are you?") == 0
    house.member_of(stranger[0], GROUP)
    assert cached(stranger[1], model, "Now what do you hold?") >= shared

    house.call("DELETE", f"/share-groups/{GROUP}/prefixes/{prefix}/")
    house.applied(house.call("GET", f"/share-groups/{GROUP}/")["version"])
    assert cached(late[1], model, "Who are you?") == 0
    wait_for(lambda: prefix not in house.readings(), 90, "the reading's end")


def test_a_group_that_ends_under_traffic_hurts_nobody(product: RunningProduct, house: House) -> None:
    """While members stream, memberships, prefixes and at last the group are taken away: every stream ends well."""
    model = product.serve["model"]
    members = [house.tenant(GROUP) for _ in range(3)]
    house.register("keeper", PROMPT)
    over = threading.Event()

    def chat_on(client: openai.OpenAI) -> int:
        num_done = 0
        messages: list[Any] = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "Go on."}]
        while not over.is_set() or num_done == 0:
            stream = client.chat.completions.create(
                model=model, messages=messages, max_tokens=40, stream=True, extra_body={"ignore_eos": True}
            )
            ends = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
            assert ends[-1] == "length"
            num_done += 1
        return num_done

    with ThreadPoolExecutor(len(members)) as pool:
        running = [pool.submit(chat_on, client) for _, client in members]
        try:
            for round_ in range(3):
                for slug, _ in members:
                    house.member_of(slug, "")
                house.register(f"other-{round_}", f"{round_} {PROMPT}")
                for slug, _ in members:
                    house.member_of(slug, GROUP)
            house.call("DELETE", f"/share-groups/{GROUP}/", params={"detach": "true"})
            wait_for(lambda: house.use() is None, 90, "the end of the group's account", lambda: str(house.use()))
        finally:
            over.set()
        assert all(future.result(120) > 0 for future in running)
