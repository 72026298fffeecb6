"""Run supervisord with one change: the web processes' listening socket stays open while none of them runs.

`python -m gateway.embedded.supervisord -c FILE`. Plain supervisord closes a shared socket with its last process, so
that connections would be refused while the only web process restarts. Here the kernel's queue holds them until it is
back.
"""

import supervisor.process
from supervisor.supervisord import main


class HeldSocketGroup(supervisor.process.FastCGIProcessGroup):  # type: ignore[misc]  # supervisor has no types
    """A group of processes on one listening socket that it never closes."""

    def __init__(self, config: object, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        self.socket_manager.ref_ctr.increment()  # opens it; nothing takes this reference back


if __name__ == "__main__":
    supervisor.process.FastCGIProcessGroup = HeldSocketGroup
    main()
