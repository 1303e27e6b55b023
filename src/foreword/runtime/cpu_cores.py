"""The cores that this process may run on: hardware threads that share one, and kinds of different speed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SYS = Path("/sys/devices")
_SLOWER = 0.9  # of the highest frequency: less is another kind of core, not a better piece of silicon


@dataclass(frozen=True)
class Core:
    """A physical core.

    Args:
        cpus: its hardware threads that the process may run on.
        kind: "P" (fast) or "E" (efficient) where the processor has both; "" where all are alike or the system does not say.
        max_mhz: its highest frequency; None where the system does not say.
    """

    cpus: tuple[int, ...]
    kind: str = ""
    max_mhz: int | None = None


def allowed_cpus() -> set[int]:
    """Hardware threads within the process's affinity."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return set(range(os.cpu_count() or 1))


def find_cores(cpus: Iterable[int], root: Path = _SYS) -> list[Core]:
    """The physical cores of these hardware threads. Where nothing is known of a thread, it is a core."""
    siblings: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        siblings.setdefault(_core_name(cpu, root), []).append(cpu)
    speeds = [_max_mhz(core[0], root) for core in siblings.values()]
    kinds = _stated_kinds(root)
    return [
        Core(tuple(core), kinds.get(core[0], "") if kinds else _kind_of(mhz, speeds), mhz)
        for core, mhz in zip(siblings.values(), speeds, strict=True)
    ]


def _core_name(cpu: int, root: Path) -> str:
    """Shared by the hardware threads of one core."""
    return _text(root / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)


def _max_mhz(cpu: int, root: Path) -> int | None:
    text = _text(root / "system" / "cpu" / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq")
    return int(text) // 1000 if text.isdecimal() else None


def _stated_kinds(root: Path) -> dict[int, str]:
    """What Intel's hybrid processors say of themselves; empty on others."""
    parts = {kind: _cpu_list(_text(root / name / "cpus")) for kind, name in (("P", "cpu_core"), ("E", "cpu_atom"))}
    return {cpu: kind for kind, cpus in parts.items() for cpu in cpus} if all(parts.values()) else {}


def _kind_of(mhz: int | None, speeds: list[int | None]) -> str:
    """By its frequency, as on ARM; where one core's is not known, none is told apart."""
    known = [speed for speed in speeds if speed is not None]
    if mhz is None or len(known) < len(speeds) or min(known) >= _SLOWER * max(known):
        return ""
    return "P" if mhz >= _SLOWER * max(known) else "E"


def _cpu_list(text: str) -> set[int]:
    """Numbers of a list like "0-3,8"; empty where it is no such list."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return set()
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
