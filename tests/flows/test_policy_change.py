"""The story of a policy change, through real processes: an operator lowers a limit while the traffic runs.

operator ──PATCH──▶ web ──NOTIFY──▶ controller ──push──▶ engine ──ack──▶ "applied on 1/1 workers in N ms"
minnow's running stream goes on; what no longer fits its limit is a 400 that says so; nobody else notices
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
import redis

from tenants.reports import STATS_KEY, TenantUse, WorkerStats
from tests.product import RunningProduct, wait_for

pytestmark = pytest.mark.flow

LONG = "the tenant holds the block and the block holds the tokens " * 40
LOW_BYTES = 128 << 10


class Operator:
    """An operator with a management key, on one tenant's policy."""

    def __init__(self, product: RunningProduct, slug: str) -> None:
        self.product = product
        origin = product.serve["base_url"].removesuffix("/v1")
        headers = {"authorization": f"Bearer {product.serve['operator']['api_key']}"}
        self.http = httpx.Client(base_url=f"{origin}/api/v1", headers=headers, timeout=60)
        self.path = f"/tenants/{slug}/policy/"

    def policy(self) -> dict[str, Any]:
        """Read the policy."""
        return self._ok(self.http.get(self.path))

    def change(self, expected: int, **changes: int) -> dict[str, Any]:
        """Change the policy."""
        return self._ok(self.http.patch(self.path, json=changes, headers={"if-match": f'"{expected}"'}))

    def applied(self, version: int) -> dict[str, Any]:
        """Wait until a version is applied on every live worker; return its acks."""
        seen: dict[str, Any] = {}

        def is_applied() -> bool:
            seen.update(self._ok(self.http.get(f"/policy-versions/{version}/acks/")))
            return seen["of"] > 0 and seen["applied"] == seen["of"]

        wait_for(is_applied, 90, f"version {version} on all workers", lambda: str(seen))
        return seen

    @staticmethod
    def _ok(response: httpx.Response) -> dict[str, Any]:
        assert response.is_success, response.text
        return dict(response.json())


@pytest.fixture
def operator(product: RunningProduct) -> Iterator[Operator]:
    """The operator; minnow's policy is put back as it was."""
    operator = Operator(product, "minnow")
    with operator.http:
        before = operator.policy()
        yield operator
        changes = {name: before[name] for name in ("kv_hard_bytes", "host_bytes")}
        restored = operator.change(operator.policy()["version"], **changes)
        operator.applied(restored["version"])


@pytest.fixture
def clients(product: RunningProduct) -> Iterator[dict[str, openai.OpenAI]]:
    """The demo tenants' SDK clients."""
    with contextlib.ExitStack() as stack:
        yield {
            slug: stack.enter_context(
                openai.OpenAI(base_url=product.serve["base_url"], api_key=access["api_key"], max_retries=0, timeout=60)
            )
            for slug, access in product.serve["tenants"].items()
        }


def use_after(store: "redis.Redis[bytes]", version: int, tenant_id: str) -> TenantUse | None:
    """Return a tenant's use in stats that the worker took after it had applied `version`."""
    for key in store.scan_iter(STATS_KEY.format(worker_id="*")):
        stats = msgspec.json.decode(store.get(key) or b"null", type=WorkerStats | None)
        if stats is not None and stats.applied_version >= version:
            return next((use for use in stats.tenants if use.tenant_id == tenant_id), None)
    return None


def chat(client: openai.OpenAI, model: str, text: str, **options: Any) -> Any:
    """Send one message."""
    options = {"max_tokens": 4} | options
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **options)


def test_an_operator_lowers_a_limit_live(
    product: RunningProduct, operator: Operator, clients: dict[str, openai.OpenAI]
) -> None:
    """The change is acked and from then on enforced, without hurting what runs or anybody else."""
    model = product.serve["model"]
    minnow, whale = clients["minnow"], clients["whale"]
    before = operator.policy()
    assert chat(minnow, model, LONG).usage.prompt_tokens > 300  # it fits

    stream = chat(minnow, model, "hello", max_tokens=200, stream=True, stream_options={"include_usage": True})
    next(stream)
    changed = operator.change(before["version"], kv_hard_bytes=LOW_BYTES, host_bytes=0)  # nor stream the rest
    assert changed["version"] > before["version"]
    acks = operator.applied(changed["version"])
    assert (acks["applied"], acks["of"]) == (1, 1)
    assert acks["ms"] >= 0

    with pytest.raises(openai.BadRequestError) as refused:
        chat(minnow, model, LONG)
    assert str(LOW_BYTES) in refused.value.message or "128 KiB" in refused.value.message, refused.value.message
    assert list(stream)[-1].usage.completion_tokens > 0  # what ran went on to its end
    assert chat(minnow, model, "hi").choices[0].finish_reason in ("stop", "length")
    assert chat(whale, model, LONG).usage.prompt_tokens > 300

    tenant_id = acks["tenant_id"]
    with redis.Redis.from_url(product.redis_url()) as store:
        seen: list[TenantUse | None] = []

        def keeps_to_it() -> bool:  # a peak counts from the statistics before: the first ones may tell of earlier
            seen.append(use_after(store, changed["version"], tenant_id))
            return seen[-1] is not None and seen[-1].kv_bytes <= seen[-1].kv_peak_bytes <= LOW_BYTES

        wait_for(keeps_to_it, 90, "use within the new limit", lambda: str(seen[-1]))

    stale = operator.http.patch(operator.path, json={"weight": 2}, headers={"if-match": f'"{before["version"]}"'})
    assert stale.status_code == 412
