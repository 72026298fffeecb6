"""Which slabs of host memory are free, and which must be left alone for a while. Knows nothing of blocks.

    free ─▶ taken ─▶ written ─▶ given back ─▶ free, or dirty: to be overwritten first
                                    └─ while anybody holds it, it waits

A hold is a copy that is planned, launched or under way, by the device or by the disk: until it is over the memory is
not anybody else's. A slab that is taken and not yet written is *stale* if what lies in it must be gone; when everything
that must be gone is (`soil`), one asks `is_clean`.
"""

from collections import deque
from collections.abc import Container, Iterable

from engine.errors import InvariantError
from engine.request import SlabId


class SlabPool:
    """Hands out slabs. One that was never used comes after those that were, so that memory is used as it is needed."""

    __slots__ = ("_clean", "_dirty", "_due", "_free", "_holds", "_leaving", "_num_begun", "_stale", "num_slabs")

    def __init__(self, num_slabs: int) -> None:
        self.num_slabs = num_slabs
        self._num_begun = 0  # slabs that were ever used: the first ones
        self._free: list[SlabId] = []  # of them; what they hold is anybody's
        self._clean: list[SlabId] = []  # overwritten, and not used since
        self._dirty: deque[SlabId] = deque()
        self._stale: set[SlabId] = set()  # taken while they were dirty, or soiled, and not yet written to
        self._due: set[SlabId] = set()  # what was to be overwritten when `soil` was called, and is not yet
        self._holds: dict[SlabId, int] = {}
        self._leaving: dict[SlabId, bool] = {}  # given back and held; whether they are to be overwritten

    @property
    def num_free(self) -> int:
        """Slabs that `take` can give."""
        return len(self._free) + len(self._clean) + len(self._dirty) + self.num_slabs - self._num_begun

    @property
    def num_leaving(self) -> int:
        """Slabs that will be free when nobody holds them any more."""
        return len(self._leaving)

    def take(self) -> SlabId | None:
        """Return a slab, all of which its taker overwrites; None when none is free."""
        if self._free or self._clean:
            return self._free.pop() if self._free else self._clean.pop()
        if self._num_begun < self.num_slabs:
            self._num_begun += 1
            return SlabId(self._num_begun - 1)
        if not self._dirty:
            return None
        slab = self._dirty.popleft()
        self._stale.add(slab)
        return slab

    def written(self, slab: SlabId) -> None:
        """Note that its taker has overwritten all of a slab."""
        self._stale.discard(slab)
        self._due.discard(slab)

    def give_back(self, slab: SlabId, *, erase: bool) -> None:
        """Let a slab go; it is free when nobody holds it. `erase`, or stale still: it is overwritten first."""
        if slab in self._stale:
            self._stale.remove(slab)
            erase = True
        if slab in self._holds:
            self._leaving[slab] = erase
        elif erase:
            self._dirty.append(slab)
        else:
            self._free.append(slab)

    def hold(self, slab: SlabId) -> None:
        """Keep a slab's memory as it is until `let_go`, whoever gives it back."""
        self._holds[slab] = self._holds.get(slab, 0) + 1

    def let_go(self, slab: SlabId) -> bool:
        """End a hold; return whether it was the last one."""
        count = self._holds[slab] - 1
        if count:
            self._holds[slab] = count
            return False
        del self._holds[slab]
        erase = self._leaving.pop(slab, None)
        if erase is not None:
            self.give_back(slab, erase=erase)
        return True

    def is_held(self, slab: SlabId) -> bool:
        """Say whether a slab's memory is in use."""
        return slab in self._holds

    # ------------------------------------------------------------ overwriting

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to be overwritten of what `soil` has found; what was given up since is another's."""
        return not self._due

    def soil(self, unwritten: Iterable[SlabId]) -> None:
        """Have all overwritten that may hold what must be gone.

        That is what is free, what will be, and the taken slabs that nobody has written to yet (`unwritten`).
        """
        self._dirty += self._free
        self._free.clear()
        self._leaving = dict.fromkeys(self._leaving, True)
        self._stale.update(unwritten)
        self._due = {*self._dirty, *self._leaving, *self._stale}

    def take_dirty(self, limit: int, waiting: Container[SlabId]) -> list[SlabId]:
        """Return up to `limit` slabs that the caller overwrites at once: dirty ones, free then, and stale ones.

        `waiting`: taken slabs that nothing is written to before that. Stale ones among the others are being written to.
        """
        due = [self._dirty.popleft() for _ in range(min(limit, len(self._dirty)))]
        self._clean += reversed(due)
        stale = [slab for slab in self._stale if slab in waiting][: limit - len(due)]
        self._stale.difference_update(stale)
        due += stale
        self._due.difference_update(due)
        return due

    def audit(self, taken: list[SlabId]) -> None:
        """Check that each slab is free, leaving or one of those that are taken. Raises InvariantError."""
        slabs = sorted([*taken, *self._free, *self._clean, *self._dirty, *self._leaving])
        if slabs != list(range(self._num_begun)) or self._num_begun > self.num_slabs:
            raise InvariantError("a slab is lost, or has two owners")
        if not self._leaving.keys() <= self._holds.keys() or min(self._holds.values(), default=1) < 1:
            raise InvariantError("a slab waits for a hold that nobody has")
        if not self._holds.keys() <= {*taken, *self._leaving}:
            raise InvariantError("a free slab is in use")
        if not self._stale <= set(taken):
            raise InvariantError("a slab is to be written to that nobody has taken")
