"""Where both SDKs are pointed: a running product, and tenants made for a test through its management API."""

import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.product import RunningProduct, wait_for
from tests.sdk.tls import Secured

LEDGER_SECONDS = 120
ENDLESS = 30_000  # tokens: of an output that is cut off long before its end
ROOM = {"max_context": 1 << 15, "max_output": 1 << 15}  # what a policy needs for it


@dataclass
class SdkTenant:
    """A tenant made for one test."""

    place: "Place"
    slug: str

    def key(self, **options: Any) -> str:
        """Create an API key and return its secret."""
        return str(self.place.manage("POST", f"tenants/{self.slug}/keys/", {"name": "sdk", **options})["secret"])

    def record(self, response_id: str) -> dict[str, Any]:
        """Wait for the usage record of a response or a request, and return it."""
        wanted = "req_" + response_id.rpartition("_" if "_" in response_id else "-")[2]
        found: list[dict[str, Any]] = []

        def there() -> bool:
            records = self.place.manage("GET", f"usage/?tenant={self.slug}")["data"]
            found.extend(record for record in records if record["request_id"] == wanted)
            return bool(found)

        wait_for(there, LEDGER_SECONDS, f"the usage record of {wanted}")
        return found[0]


@dataclass
class Place:
    """A running product and how to reach it."""

    product: RunningProduct
    faulty_url: str  # of `tests.sdk.faulty`, which stands before it
    _http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60), repr=False)

    @property
    def base_url(self) -> str:
        """What an SDK takes."""
        return str(self.product.serve["base_url"])

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.product.serve["model"])

    @property
    def key(self) -> str:
        """A key of a tenant without rate limits."""
        return str(self.product.serve["tenants"]["minnow"]["api_key"])

    def tenant(self, **policy: Any) -> SdkTenant:
        """Create a tenant; `policy`: what differs from the default."""
        slug = f"sdk-{uuid.uuid4().hex[:12]}"
        self.manage("POST", "tenants/", {"slug": slug, "name": slug, "policy": policy})
        return SdkTenant(self, slug)

    def manage(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call the management API as the operator."""
        url = f"{self.base_url.removesuffix('/v1')}/api/v1/{path}"
        headers = {"authorization": f"Bearer {self.product.serve['operator']['api_key']}"}
        answer = self._http.request(method, url, json=body, headers=headers)
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    def for_javascript(self, secured: Secured) -> dict[str, Any]:
        """Return what the JavaScript suite is told of it."""
        return {
            "baseURL": self.base_url,
            "model": self.model,
            "key": self.key,
            "operator": str(self.product.serve["operator"]["api_key"]),
            "faultyURL": self.faulty_url,
            "secureURL": secured.base_url,
            "certificate": secured.certificate,
            "endless": ENDLESS,
            "room": ROOM,
        }

    def close(self) -> None:
        """Close the client."""
        self._http.close()
