"""The result of a benchmark in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from foreword.bench.intervals import TOO_LITTLE
from foreword.bench.wording import (
    against_rivals,
    conditions,
    gate_word,
    interval,
    percent,
    times,
    unfinished,
    with_interval,
)
from foreword.cli.output import console


def print_summary(data: Mapping[str, Any]) -> None:
    """A table a mode, reasons beneath it."""
    screen, summary = console(), data["summary"]
    screen.print(conditions(data))
    for mode in summary["modes"]:
        screen.print()
        screen.print(_table(mode))
        screen.print(
            f"plain answers: {percent(mode['repeated_4grams'])} of the 4-grams are repeats; "
            f"{mode['num_calm_prompts']} of {mode['num_prompts']} prompts repeat less than 40 %"
        )
        for row in mode["rows"]:
            if row["gate"]["status"] not in ("same", "law"):
                screen.print(f"{row['label']}: {row['gate']['reason']}")
            if row["verdict"] == TOO_LITTLE:
                screen.print(f"{row['label']}: {TOO_LITTLE} whether it is faster; give more prompts or --repeats")
        if mode["auto_against_best_fixed"]:
            worst = min(mode["auto_against_best_fixed"].items(), key=lambda item: item[1])
            screen.print(f"auto against the best fixed choice of each category: {worst[1]:.2f} at least ({worst[0]})")
    _print_light(data, screen)
    for row in sorted(data["peers"], key=lambda row: -row["tok_per_s"]["value"]):
        screen.print(f"{row['label']}: {with_interval(row['tok_per_s'], 0)} tok/s")
    if data["peers"]:
        screen.print(against_rivals(data))
    if unfinished(data):
        screen.print(unfinished(data))


def _table(mode: Mapping[str, Any]) -> Table:
    table = Table(title=mode["name"], title_justify="left")
    table.add_column("drafter")
    table.add_column("same tokens")
    for name in ("tokens per step", "tok/s", "times plain", "95 %", "repeating little"):
        table.add_column(name, justify="right")
    for row in mode["rows"]:
        tokens = row.get("tokens_per_step")
        table.add_row(
            row["label"],
            gate_word(row["gate"]).replace("*", ""),
            "" if tokens is None else f"{tokens:.2f}",
            times(row["tok_per_s"], 0),
            times(row["speedup"]),
            "" if row["is_baseline"] else interval(row["speedup"]),
            times(row["speedup_calm"]),
        )
    return table


def _print_light(data: Mapping[str, Any], screen: Any) -> None:
    light = data["summary"]["speed_of_light_tok_per_s"]
    if light is None:
        return
    cost = data["pass_cost"]
    screen.print(
        f"lower bound by memory: {light:.0f} tok/s for plain decoding, {cost['weight_bytes'] / 1e6:.0f} MB of weights per pass at "
        f"{cost['bandwidth_gb_per_s']:.1f} GB/s; times the tokens per step with a drafter"
    )
