"""How figures and facts of a result are put into words: the same in the terminal, in Markdown and on the page."""

from collections.abc import Mapping
from typing import Any

from foreword.bench.intervals import TOO_LITTLE

_GATES = {
    "same": "yes",
    "near_ties": "yes, but for near-ties",
    "failed": "**NO**",
    "law": "same distribution",
    "lossy": "lossy",
    "refused": "refused",
}


def gate_word(gate: Mapping[str, Any]) -> str:
    """Whether it says the same."""
    return _GATES[gate["status"]]


def times(estimate: Mapping[str, Any] | None, digits: int = 2) -> str:
    """A figure without its interval."""
    return "" if estimate is None else f"{estimate['value']:.{digits}f}"


def interval(estimate: Mapping[str, Any] | None, digits: int = 2) -> str:
    """The 95 % interval alone; nothing where there is none."""
    if estimate is None or estimate["low"] is None:
        return ""
    return f"{estimate['low']:.{digits}f} to {estimate['high']:.{digits}f}"


def with_interval(estimate: Mapping[str, Any] | None, digits: int = 2) -> str:
    """A figure and its interval."""
    bounds = interval(estimate, digits)
    return times(estimate, digits) + (f" ({bounds})" if bounds else "")


def with_verdict(row: Mapping[str, Any]) -> str:
    """A row's speed-up with its interval, and that it tells nothing where that is so; a baseline is 1 and no more."""
    if row["is_baseline"]:
        return times(row["speedup"])
    figure = with_interval(row["speedup"])
    return f"{figure}, {TOO_LITTLE}" if row["verdict"] == TOO_LITTLE else figure


def percent(share: float | None) -> str:
    """A share, whole percent; the space before the sign does not break."""
    return "" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def duration(seconds: float | None) -> str:
    """A time that people can grasp."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def megabytes(num_bytes: float | None) -> str:
    """A size in MB."""
    return "" if num_bytes is None else f"{num_bytes / 1e6:.0f} MB"


def plural(count: int, word: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def cpu_name(data: Mapping[str, Any]) -> str:
    """Of the machine."""
    return data["provenance"].get("machine", {}).get("cpu", {}).get("name") or "unknown processor"


def conditions(data: Mapping[str, Any]) -> str:
    """One line: what was measured, where, how."""
    found, settings = data["provenance"], data["settings"]
    return (
        f"{found['model']} ({found['runtime']} {found['dtype']}), {cpu_name(data)}, "
        f"{plural(settings['threads'], 'thread') if settings['threads'] else 'default threads'}, "
        f"{plural(len(data['prompts']), 'prompt')}, at most {settings['max_tokens']} tokens, medians of "
        f"{plural(settings['repeats'], 'interleaved repeat')}, {found['date']}"
    )


def unfinished(data: Mapping[str, Any]) -> str:
    """A warning where runs are missing; else nothing."""
    return "" if data["is_complete"] else "this benchmark was stopped before its end: some runs are missing"


def against_rivals(data: Mapping[str, Any]) -> str:
    """How we stand beside the fastest other engines; empty where none was merged."""
    found = data["summary"]["against_rivals"]
    if not found:
        return ""
    words = {"any": "the fastest of all", "8_bits_or_more": "the fastest at 8 bits or more"}
    parts = [
        f"{found[key]['times']:.2f} times {what} ({found[key]['fastest']})"
        for key, what in words.items()
        if key in found
    ]
    return f"{found['label']} is {' and '.join(parts)}"
