"""A kernel with its grid and arguments, ready to run, or to be compiled ahead of time for a GPU that is not there."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a Triton kernel. `arguments` holds runtime arguments and constants by name."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 2

    def run(self) -> None:
        """Start the kernel; an empty grid starts nothing."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, num_warps=self.num_warps, num_stages=self.num_stages)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`: Triton's tiles have such sides."""
    return 1 << (number - 1).bit_length()
