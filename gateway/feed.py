"""What the control plane tells a running web process: changed keys, policies and workers."""

import structlog

from gateway.api.auth import KeyCache
from gateway.reads import Reads, StoreAway
from gateway.realtime.sockets import Sockets
from gateway.workers.registry import WorkerRegistry
from tenants import selectors
from tenants.contracts import KEYS_CHANNEL, POLICY_CHANNEL, WORKERS_CHANNEL

_log = structlog.get_logger("gateway.feed")


class Feed:
    """Turns notifications, and the polls that stand in for lost ones, into calls on the caches."""

    def __init__(self, keys: KeyCache, sockets: Sockets, registry: WorkerRegistry, reads: Reads) -> None:
        self._keys = keys
        self._sockets = sockets
        self._registry = registry
        self._reads = reads
        self._version = 0
        self.handlers = {
            KEYS_CHANNEL: self._key_changed,
            POLICY_CHANNEL: self._policy_changed,
            WORKERS_CHANNEL: self._workers_changed,
        }

    async def poll(self, reconnected: bool) -> None:
        """Catch up. After a reconnection any key may have changed unheard."""
        if reconnected:
            self._keys.doubt_all()
        await self._read_policies()
        await self._registry.refresh()

    async def _key_changed(self, payload: str) -> None:
        self._keys.forget(payload)
        self._sockets.changed(payload)

    async def _policy_changed(self, _version: str) -> None:
        await self._read_policies()

    async def _workers_changed(self, _worker: str) -> None:
        await self._registry.refresh()

    async def _read_policies(self) -> None:
        try:
            changed = await self._reads.run(selectors.policies, since_version=self._version)
        except StoreAway as error:
            _log.warning("policies_unread", reason=str(error))
            return
        self._keys.take_policies(changed)
        self._version = max([self._version, *(policy.version for _, policy in changed)])
