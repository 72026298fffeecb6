"""Asks a product of its own what nobody should, for long: `make fuzz`.

python -m tests.contract.fuzz [--cases 5000] [--seed N]      the same seed: the same cases
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from tests.contract import bodies
from tests.contract.documents import Campaign, closed, lean, named, placed
from tests.contract.judge import judge
from tests.engine.tiny_model import make_tiny_model
from tests.product import RunningProduct, running_product
from tests.sdk.place import Place

POLICY = {"max_output": 4, "max_running": 64}


def main() -> int:
    """Run; return 1 where anything broke."""
    parser = argparse.ArgumentParser(description="Cases made of both OpenAPI documents, against a product of its own.")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    number = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {number}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tollgate-fuzz-") as name:
        folder = Path(name)
        model = make_tiny_model(folder / "tiny")
        with running_product(folder / "var", {"ENGINE_MODEL": str(model)}) as product:
            time_hostile_bodies(product)
            tried = campaigns(product)
            went_well = [run(campaign, -(-options.cases // len(tried)), number) for campaign in tried]
            return int(not all(went_well))


def campaigns(product: RunningProduct) -> list[Campaign]:
    """Return those of both documents, with a key that may do all that it says."""
    place = Place(product, "")
    url = place.base_url.removesuffix("/v1")
    tenant = place.tenant(**POLICY)
    key = tenant.key()
    v1 = httpx.get(f"{url}/v1/openapi.json", timeout=120).json()
    management = httpx.get(f"{url}/api/schema/?format=json", headers={"accept": "application/json"}, timeout=120).json()
    operator = str(product.serve["operator"]["api_key"])
    place.close()
    own, theirs = {"authorization": f"Bearer {key}"}, {"authorization": f"Bearer {operator}"}
    reachable = named(v1, place.model)
    return [
        Campaign(closed(reachable), url, own),
        Campaign(closed(lean(reachable)), url, own, modes=(GenerationMode.POSITIVE,)),
        Campaign(placed(management, tenant.slug), url, theirs),
    ]


def run(campaign: Campaign, num_cases: int, number: int) -> bool:
    """Try all operations; return whether all went well, and print what didn't."""
    operations = list(campaign.operations())
    failures = 0
    for operation in operations:
        try:
            campaign.run(operation, -(-num_cases // len(operations)), number)
        except (Exception, FailureGroup) as error:  # noqa: BLE001  # shown; the other operations are tried as well
            failures += 1
            print(f"FAILED {operation.label}\n{error}\n", flush=True)
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(campaign.statuses.items()))
    title = campaign.document["info"]["title"]
    print(f"{title}: {len(operations)} operations, {campaign.num_cases} cases ({statuses}), {failures} failed")
    return not failures


def time_hostile_bodies(product: RunningProduct) -> None:
    """Print how long each body that is made to hurt takes to be refused, the best of three."""
    place = Place(product, "")
    with httpx.Client(headers={"authorization": f"Bearer {place.tenant().key()}"}, timeout=120) as client:
        for name, body in bodies.HOSTILE.items():
            content = body(bodies.chat_head(place.model))
            took = []
            for _ in range(3):
                began = time.perf_counter()
                judge(client.post(f"{place.base_url}/chat/completions", content=content))
                took.append(time.perf_counter() - began)
            print(f"{min(took) * 1000:7.1f} ms  {name} ({len(content)} bytes)", flush=True)
    place.close()


if __name__ == "__main__":
    sys.exit(main())
