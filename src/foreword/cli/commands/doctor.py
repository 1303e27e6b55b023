"""`foreword doctor`: what this machine offers, what is missing, and what that costs."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.output import console, count_text, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foreword.bench.cache_check import CacheCheck
    from foreword.runtime.cpu_cores import Core


def doctor(
    json: opt.Json = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare every file of the cache with its checksums; exit code 1 if one is damaged."
        ),
    ] = False,
) -> None:
    """Say what was found on this machine, what is missing, what it costs and what to do."""
    from foreword.bench.machine_facts import machine_facts

    facts = machine_facts()
    found = _check_cache() if verify else None
    if json:
        print_json(facts | ({"cache_check": found.as_json()} if found else {}))
    else:
        _print_facts(facts)
        if found:
            _print_check(found)
    if found and found.damaged:
        raise typer.Exit(1)


def _check_cache() -> "CacheCheck":
    from foreword.bench.cache_check import check_cache
    from foreword.cache_folder import cache_folder
    from foreword.progress import reporting

    with reporting(sys.stderr.isatty()) as report:
        return check_cache(cache_folder(), report)


def _print_check(found: "CacheCheck") -> None:
    screen = console()
    state = {0: "none is damaged", 1: "1 is damaged"}.get(len(found.damaged), f"{len(found.damaged)} are damaged")
    screen.print(f"\ncache: {count_text(found.num_files, 'file')} of {found.num_bytes / 1e6:,.0f} MB compared, {state}")
    for damaged in found.damaged:
        what = "removed; it is made again when it is next needed" if damaged.is_removed else "it cannot be removed"
        screen.print(f"- {damaged.problem}: {what}")
    if found.num_leftovers:
        screen.print(f"- {count_text(found.num_leftovers, 'leftover')} of stopped programs removed")


def cores_text(cores: "Sequence[Core]", num_logical: int | None, quota: float | None) -> str:
    """The cores by kind, and what keeps the process from using all of the machine."""
    parts = []
    for kind in sorted({core.kind for core in cores if core.kind}, reverse=True):  # P before E
        some = [core for core in cores if core.kind == kind]
        details = [f"{some[0].max_mhz / 1000:.1f} GHz"] if some[0].max_mhz else []
        details += [f"{len(some[0].cpus)} threads each"] if len(some[0].cpus) > 1 else []
        parts.append(f"{len(some)} {kind}" + (f" ({', '.join(details)})" if details else ""))
    text = f"{len(cores)} physical" + (f": {', '.join(parts)}" if parts else "")
    num_allowed = sum(len(core.cpus) for core in cores)
    if num_logical is not None and num_allowed < num_logical:
        text += f"; may run on {num_allowed} of {num_logical} logical cores"
    return text if quota is None else f"{text}; the container grants the time of {quota:g}"


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.table import Table

    from foreword.runtime.cpu_cores import Core

    cpu, native, cache = facts["cpu"], facts["native"], facts["cache"]
    gpu = ", ".join(facts["torch"]["gpus"]) or "none"
    is_cached = "fetched" if facts["default_model"]["is_cached"] else "not fetched yet (98 MB at the first use)"
    rows = {
        "foreword": facts["foreword"],
        "python": f"{facts['python']} on {facts['platform']}",
        "processor": f"{cpu['name']}, {cpu['logical_cores']} logical cores",
        "cores": cores_text([Core(**core) for core in cpu["cores"]], cpu["logical_cores"], cpu["quota_cores"]),
        "instructions": ", ".join(cpu["features"]) or "none of those that the kernels use",
        "torch": f"{facts['torch']['version']}, {facts['torch']['threads']} threads, {facts['torch']['capability']}",
        "GPU": gpu,
        "native runtime": "available" if native["is_available"] else f"not available: {native['problem']}",
        "chosen here": f"{facts['choice']['runtime']} {facts['choice']['dtype']}: {facts['choice']['reason']}",
        "default drafter": "{default}: {why}; {otherwise}".format(**facts["drafter"]),
        "trained drafters": ", ".join(facts["trained_drafters"]) or "none",
        "compilers": ", ".join(facts["compilers"].values()) or "none found",
        "cache": f"{cache['folder']}, {cache['free_bytes'] / 1e9:.1f} GB free",
        "default model": is_cached,
    }
    if (budget := facts["kv_cache"]["budget_bytes"]) is not None:
        rows["key-value cache"] = (
            f"up to {budget / 1e9:.1f} GB of the memory that is free now, less the model's weights"
        )
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, str(value))
    screen = console()
    screen.print(table)
    screen.print("\nadvice:" if facts["advice"] else "\nNo problems found.")
    for line in facts["advice"]:
        screen.print(f"- {line}")
