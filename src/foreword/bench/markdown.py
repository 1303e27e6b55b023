"""A result as a Markdown table, for a README."""

from collections.abc import Mapping
from typing import Any

from foreword.bench.wording import conditions, gate_word, percent, times, with_interval, with_verdict


def markdown(data: Mapping[str, Any]) -> str:
    """Tables of a result file with its summary, one per mode, with what they stand on."""
    parts = [conditions(data)]
    for mode in data["summary"]["modes"]:
        parts += ["", *_table(mode)]
    if data["peers"]:
        parts += ["", *_rivals(data)]
    return "\n".join(parts) + "\n"


def _table(mode: Mapping[str, Any]) -> list[str]:
    categories = list(mode["num_prompts_by_category"])
    shown = categories if len(categories) > 1 else []
    head = ["drafter", "same tokens", "tokens per step", "tok/s", "times plain (95 %)", "repeating little", *shown]
    lines = [
        f"**{mode['name'].capitalize()}**, {mode['num_prompts']} prompts; {percent(mode['repeated_4grams'])} of the plain "
        f"answers' 4-grams are repeats; {mode['num_calm_prompts']} prompts repeat less than 40 %",
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|" + "--:|" * (len(head) - 2),
    ]
    for row in mode["rows"]:
        tokens, speed = row.get("tokens_per_step"), row["tok_per_s"]
        cells = [
            f"`{row['label']}`",
            gate_word(row["gate"]),
            "" if tokens is None else f"{tokens:.2f}",
            "" if speed is None else f"{speed['value']:.0f}",
            with_verdict(row),
            times(row["speedup_calm"]),
            *(times(row["by_category"].get(name, {}).get("speedup")) for name in shown),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if shown:
        shares = [percent(mode["repeated_4grams_by_category"][name]) for name in shown]
        lines.append("| " + " | ".join(["repeated 4-grams", "", "", "", "", "", *shares]) + " |")
    return lines


def _rivals(data: Mapping[str, Any]) -> list[str]:
    lines = ["| other engines, same prompts | tok/s (95 %) | repeated 4-grams |", "|---|--:|--:|"]
    for row in sorted(data["peers"], key=lambda row: -row["tok_per_s"]["value"]):
        share = percent(row["repeated_4grams"])
        lines.append(f"| {row['label']} | {with_interval(row['tok_per_s'], 0)} | {share} |")
    return lines
