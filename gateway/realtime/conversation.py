"""The conversation of one socket: what a `response.create` without an input goes on from. Kept nowhere else."""

import uuid

import msgspec

from gateway.api.errors import BadRequest
from gateway.api.schemas import MAX_MESSAGES
from gateway.realtime.held import held_bytes
from gateway.realtime.items import Item, new_id
from gateway.realtime.room import Share, no_room

MAX_ITEMS = MAX_MESSAGES
MAX_BYTES = 4 << 20  # of memory, of all items together


class Conversation:
    """Items in order. Responses take them as they are at their beginning, and add to them at their end."""

    def __init__(self, share: Share) -> None:
        """Begin an empty one.

        Args:
            share: what its items take their room from.
        """
        self.id = f"conv_{uuid.uuid4().hex[:24]}"
        self._share = share
        self._items: dict[str, Item] = {}  # in order
        self._num_bytes = 0  # of memory

    @property
    def items(self) -> tuple[Item, ...]:
        """The items."""
        return tuple(self._items.values())

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return next(reversed(self._items), None)

    def add(self, item: Item, after: str | None = None) -> tuple[Item, str | None]:
        """Add an item, at the end or after another one; one without an id gets one.

        Args:
            item: to be added.
            after: the id of an item, or `root` for the beginning; None: the end.

        Returns:
            The item, and the id of the one before it.

        Raises:
            BadRequest: the id is taken, `after` isn't there, or there is no room for it.
        """
        if item.id is None:
            item = msgspec.structs.replace(item, id=new_id())
        assert item.id is not None
        if item.id in self._items:
            raise BadRequest("`item.id` is taken: leave it out, or choose another one", param="item.id")
        if after not in (None, "root") and after not in self._items:
            raise _unknown(str(after), "previous_item_id")
        self._take_room(item)
        if after is None:
            previous = self.last_id
            self._items[item.id] = item
        else:
            previous = self._insert(item.id, item, after)
        return item, previous

    def get(self, item_id: str, *, field: str) -> Item:
        """Return an item. Raises BadRequest, which names `field`, where it isn't there."""
        item = self._items.get(item_id)
        if item is None:
            raise _unknown(item_id, field)
        return item

    def remove(self, item_id: str, *, field: str) -> None:
        """Take an item out. Raises BadRequest, which names `field`, where it isn't there."""
        item = self._items.pop(item_id, None)
        if item is None:
            raise _unknown(item_id, field)
        size = held_bytes(item)
        self._num_bytes -= size
        self._share.take(-size)

    def _take_room(self, item: Item) -> None:
        size = held_bytes(item)
        if len(self._items) >= MAX_ITEMS:
            raise _full(f"The conversation has {len(self._items)} items, of at most {MAX_ITEMS}: delete some")
        if self._num_bytes + size > MAX_BYTES:
            raise _full(
                f"The conversation takes {self._num_bytes} bytes of memory, of at most {MAX_BYTES}, and the item would "
                f"take {size}: shorten it, or delete some"
            )
        if not self._share.take(size):
            fix = "close some, or delete items with `conversation.item.delete`"
            raise no_room(fix, param="item", code="conversation_full")
        self._num_bytes += size

    def _insert(self, item_id: str, item: Item, after: str) -> str | None:
        ids = list(self._items)
        place = 0 if after == "root" else ids.index(after) + 1
        behind = {name: self._items.pop(name) for name in ids[place:]}
        self._items[item_id] = item
        self._items |= behind
        return ids[place - 1] if place else None


def _full(message: str) -> BadRequest:
    return BadRequest(f"{message} with `conversation.item.delete`", param="item", code="conversation_full")


def _unknown(item_id: str, field: str) -> BadRequest:
    return BadRequest(f"`{field}`: the conversation has no item `{item_id}`", param=field, code="item_not_found")
