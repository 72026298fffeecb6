"""What both replays have in common: the machine, its speed, the share groups, and the size of a coarse token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.policy import SharedPrefix, ShareGroup, TenantPolicy
from engine.replay.task import GroupLimits
from engine.scheduler.sizing import Limits
from engine.trace.records import Machine, Speed

_ANY = 1 << 40  # more tokens than there are


class Setting(NamedTuple):
    """What a replay is made of, whatever the limits."""

    machine: Machine
    speed: Speed | None
    groups: Sequence[GroupLimits]
    grain: int  # tokens of the model that one of the replay stands for
    num_symbols: int
    heads: frozenset[tuple[str, tuple[int, ...]]]  # share group and symbols of each registered prefix that was used

    def limits(self, grain: int) -> Limits:
        """Return what the machine allows to anyone, in tokens of a grain."""
        machine = self.machine
        return Limits(
            vocab_size=self.num_symbols,
            max_context=machine.max_context if grain == 1 else _ANY,
            num_blocks=machine.num_blocks,
            block_size=machine.block_size // grain,
            block_bytes=machine.block_bytes,
        )

    def share_groups(self) -> tuple[ShareGroup, ...]:
        """Return the share groups, with the prefixes that requests have used."""
        return tuple(
            ShareGroup(
                name=group.name,
                kv_soft_bytes=group.kv_soft_bytes,
                kv_hard_bytes=group.kv_hard_bytes,
                prefixes=tuple(
                    SharedPrefix(
                        group=group.name, namespace=f"group {group.name}".encode(), token_ids=self._coarse(symbols)
                    )
                    for name, symbols in sorted(self.heads)
                    if name == group.name
                ),
            )
            for group in self.groups
        )

    def _coarse(self, symbols: Sequence[int]) -> tuple[int, ...]:
        width = self.machine.block_size // self.grain
        return tuple(symbol for symbol in symbols for _ in range(width))


def unlimited(policy: TenantPolicy) -> TenantPolicy:
    """Return a policy whose limits in tokens were seen to when the request came: in the model's tokens."""
    return replace(policy, max_context_tokens=_ANY, max_output_tokens=_ANY, shadow=None)
