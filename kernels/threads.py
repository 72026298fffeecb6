"""How many cores this process may use: those of its affinity mask, and no more than its control groups pay for."""

import math
import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return at least 1. A quota of one and a half cores counts as two. `root` holds `proc` and `sys`."""
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
    return max(1, min(cores, *(math.ceil(quota) for quota in quotas))) if quotas else cores


def _groups(root: Path) -> list[Path]:
    """Return the folders of this process's CPU group and of those above it, versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # no control groups here
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        own = top / path.lstrip("/")
        folders += [own, *(parent for parent in own.parents if parent.is_relative_to(top))]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the cores that a group may use at a time; None: no limit, or no such file."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
