"""How many threads a CPU runtime should use: physical cores that this process may run on."""

import math
from pathlib import Path

from foreword.runtime.cpu_cores import allowed_cpus, find_cores


def default_threads() -> int:
    """Physical cores within the process's affinity, at most what the container's CPU quota allows; at least 1."""
    cores = find_cores(allowed_cpus())
    quota = cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the control group (version 2, then 1) grants; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota, period = (int((root / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
