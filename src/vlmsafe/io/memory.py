"""How much memory is free."""

from __future__ import annotations

import os
from pathlib import Path


def free_memory() -> int:
    """Bytes that can be allocated without swapping, within the limits of the kernel and of a container."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:  # not Linux
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no container, or no limit ('max')
            continue
    return max(1, min(found))
