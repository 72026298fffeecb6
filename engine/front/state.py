"""The worker's state folder, held by one process at a time."""

import fcntl
import os
from pathlib import Path

from engine.errors import ConfigError


class StateLock:
    """A lock that the kernel drops with the process, however that ends."""

    def __init__(self, state_dir: Path) -> None:
        """Create the folder and take it.

        Raises:
            ConfigError: another worker has it, or it cannot be written.
        """
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"ENGINE_STATE_DIR={state_dir}: it cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(
                f"ENGINE_STATE_DIR={state_dir}: another worker is using it; stop it or give this one its own folder"
            ) from None

    def release(self) -> None:
        """Give the folder back."""
        os.close(self._file)
