"""Characters that sockets keep between events: what a process has room for, and how much of it a tenant may have."""

from collections import Counter


class Room:
    """Owned by the web process. Counts what conversations and sessions of all its sockets hold."""

    def __init__(self, process: int = 64 << 20, tenant: int = 16 << 20) -> None:
        self._process = process
        self._tenant = tenant
        self._held: Counter[str] = Counter()

    def share(self, tenant_id: str) -> "Share":
        """Return what one socket of a tenant takes its room from."""
        return Share(self, tenant_id)

    def take(self, tenant_id: str, characters: int) -> bool:
        """Take room, if there is so much; less than nothing gives back."""
        if characters > 0 and (
            self._held[tenant_id] + characters > self._tenant or self._held.total() + characters > self._process
        ):
            return False
        self._held[tenant_id] += characters
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        return True


class Share:
    """What one socket holds; all of it goes back at its end."""

    def __init__(self, room: Room, tenant_id: str) -> None:
        self._room = room
        self._tenant_id = tenant_id
        self._characters = 0

    def take(self, characters: int) -> bool:
        """Take room, if there is so much; less than nothing gives back."""
        if not self._room.take(self._tenant_id, characters):
            return False
        self._characters += characters
        return True

    def close(self) -> None:
        """Give everything back."""
        self._room.take(self._tenant_id, -self._characters)
        self._characters = 0
