"""Memory of what sockets keep: what a process has room for, and how much of it a tenant may have. In bytes."""

from collections import Counter

from gateway.api.errors import BadRequest

PROCESS_BYTES = 128 << 20
TENANT_BYTES = 32 << 20


class Room:
    """Owned by the web process. Counts what conversations, sessions and responses of all its sockets hold."""

    def __init__(self, process: int = PROCESS_BYTES, tenant: int = TENANT_BYTES) -> None:
        self._process = process
        self._tenant = tenant
        self._held: Counter[str] = Counter()

    def share(self, tenant_id: str) -> "Share":
        """Return what one socket of a tenant takes its room from."""
        return Share(self, tenant_id)

    def take(self, tenant_id: str, num_bytes: int) -> bool:
        """Take room, if there is so much; less than nothing gives back."""
        if num_bytes > 0 and (
            self._held[tenant_id] + num_bytes > self._tenant or self._held.total() + num_bytes > self._process
        ):
            return False
        self._held[tenant_id] += num_bytes
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        return True


class Share:
    """What one socket holds; all of it goes back at its end."""

    def __init__(self, room: Room, tenant_id: str) -> None:
        self._room = room
        self._tenant_id = tenant_id
        self._num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Take room, if there is so much; less than nothing gives back."""
        if not self._room.take(self._tenant_id, num_bytes):
            return False
        self._num_bytes += num_bytes
        return True

    def close(self) -> None:
        """Give everything back."""
        self._room.take(self._tenant_id, -self._num_bytes)
        self._num_bytes = 0


def no_room(fix: str, *, param: str, code: str) -> BadRequest:
    """Return the refusal of what doesn't fit; `fix`: what makes room."""
    message = (
        f"Your sockets together may hold {TENANT_BYTES >> 20} MiB of memory, less while the server has no more room"
    )
    return BadRequest(f"{message}: {fix}", param=param, code=code)
