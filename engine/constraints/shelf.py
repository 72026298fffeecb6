"""What is kept for each tenant, as long as there is room: nobody's things push out those of who has less.

Nothing is shared between tenants: whether a thing is at hand shows in how long an answer takes, and would tell one
tenant what another one asks for.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shelf(Generic[K, V]):
    """Things by tenant and key, each of a size. Those that were asked for last stay longest."""

    def __init__(self, most: int, *, tenant_most: int) -> None:
        """Be empty.

        Args:
            most: the size of everything.
            tenant_most: of one tenant's.
        """
        self._most = most
        self._tenant_most = tenant_most
        self._things: dict[str, OrderedDict[K, tuple[V, int]]] = {}  # none is empty
        self._sizes: dict[str, int] = {}
        self.size = 0

    def get(self, tenant: str, key: K) -> V | None:
        """Return what a tenant has under a key; None: nothing."""
        things = self._things.get(tenant)
        found = None if things is None else things.get(key)
        if things is None or found is None:
            return None
        things.move_to_end(key)
        return found[0]

    def put(self, tenant: str, key: K, value: V, size: int = 1) -> None:
        """Keep a thing, in place of what was under its key; what there is no room for any more goes."""
        if key in self._things.get(tenant, ()):
            self._drop(tenant, key)
        self._things.setdefault(tenant, OrderedDict())[key] = value, size
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size
        self.size += size
        while self._sizes.get(tenant, 0) > self._tenant_most:
            self._drop(tenant, next(iter(self._things[tenant])))
        while self.size > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._drop(largest, next(iter(self._things[largest])))

    def tenant_size(self, tenant: str) -> int:
        """Return the size of what a tenant has."""
        return self._sizes.get(tenant, 0)

    def _drop(self, tenant: str, key: K) -> None:
        things = self._things[tenant]
        _, size = things.pop(key)
        self.size -= size
        self._sizes[tenant] -= size
        if not things:
            del self._things[tenant], self._sizes[tenant]
