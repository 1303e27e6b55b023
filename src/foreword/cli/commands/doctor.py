"""`foreword doctor`: what this machine offers, what is missing, and what that costs."""

from typing import Any

from foreword.cli import options as opt
from foreword.cli.output import console, print_json


def doctor(json: opt.Json = False) -> None:
    """Say what was found on this machine, what is missing, what it costs and what to do."""
    from foreword.bench.machine_facts import machine_facts

    facts = machine_facts()
    if json:
        print_json(facts)
    else:
        _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.table import Table

    cpu, native, cache = facts["cpu"], facts["native"], facts["cache"]
    gpu = ", ".join(facts["torch"]["gpus"]) or "none"
    is_cached = "fetched" if facts["default_model"]["is_cached"] else "not fetched yet (98 MB at the first use)"
    rows = {
        "foreword": facts["foreword"],
        "python": f"{facts['python']} on {facts['platform']}",
        "processor": f"{cpu['name']}, {cpu['logical_cores']} logical cores",
        "instructions": ", ".join(cpu["features"]) or "none of those that the kernels use",
        "torch": f"{facts['torch']['version']}, {facts['torch']['threads']} threads, {facts['torch']['capability']}",
        "GPU": gpu,
        "native runtime": "available" if native["is_available"] else f"not available: {native['problem']}",
        "chosen here": f"{facts['choice']['runtime']} {facts['choice']['dtype']}: {facts['choice']['reason']}",
        "default drafter": "{default}: {why}; {otherwise}".format(**facts["drafter"]),
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
    screen.print("\nadvice:" if facts["advice"] else "\nnothing to mend.")
    for line in facts["advice"]:
        screen.print(f"- {line}")
