"""Recording what is launched on a device, so that it can be launched again at once."""

from collections.abc import Callable
from typing import Protocol

import torch


class Capture(Protocol):
    """Records what a callable launches. Records share their memory, since no two of them run at once."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what launches the same again, over the same memory.

        Raises:
            torch.OutOfMemoryError: there is no room for it.
            RuntimeError: something in it cannot be recorded.
        """
        ...

    def held_bytes(self) -> int:
        """Return the device memory that the records keep."""
        ...


class CudaCapture:
    """Records CUDA graphs in one pool of memory."""

    def __init__(self, device: torch.device, spared_bytes: int) -> None:
        """Leave `spared_bytes` of the device's memory free: steps that run without a graph need them."""
        self._device, self._spared_bytes = device, spared_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded = 0
        self._free = self._free_bytes()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """See `Capture.__call__`."""
        self._check_free()
        graph = torch.cuda.CUDAGraph()
        if not self._recorded:  # a pool that lost its only record is not taken again
            self._pool = torch.cuda.graph_pool_handle()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):  # the one below stays on its stream when recording fails
            run()  # compiles, loads and chooses what must not be while recording
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._check_free()
        self._recorded += 1
        return graph.replay

    def held_bytes(self) -> int:
        """See `Capture.held_bytes`."""
        return max(0, self._free - self._free_bytes())

    def _check_free(self) -> None:
        if self._free_bytes() < self._spared_bytes:
            raise torch.OutOfMemoryError(f"less than {self._spared_bytes >> 20} MiB would be left for other steps")

    def _free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was the cause; a failure to end the recording may have come on top."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__context__
    return False
