"""From raw runs to the figures that are shown. Nothing is shown of a cell that failed its gate but why."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from foreword.bench import metrics
from foreword.bench.cells import Cell, Mode
from foreword.bench.intervals import Estimate
from foreword.bench.reliability import reliability
from foreword.bench.results import Answer, BenchResult, Run
from foreword.bench.workloads import in_groups

_FAIR_BITS = 8  # rivals with as many bits per weight keep as much of the model as int8 does


@dataclass(frozen=True)
class _Groups:
    """Groups of prompts by what they are."""

    by_category: dict[str, list[int]]
    calm: list[int]  # whose plain answers repeat themselves little
    repeated: dict[int, float]  # share of repeated 4-grams in the plain answers

    @property
    def all(self) -> list[int]:
        return [group for groups in self.by_category.values() for group in groups]


def summarise(result: BenchResult) -> dict[str, Any]:
    """Ready for JSON; the order of modes, rows and categories is that of the benchmark."""
    modes = list(dict.fromkeys(cell.mode for cell in result.cells))
    summary: dict[str, Any] = {"modes": [_mode(result, mode) for mode in modes]}
    cost = result.pass_cost
    summary["speed_of_light_tok_per_s"] = 1e3 / cost["floor_ms"] if cost else None
    summary["against_rivals"] = _against_rivals(summary["modes"][0], result.peers)
    summary["num_answers"] = sum(len(run.answers) for run in result.runs)
    summary["num_tokens"] = sum(answer.new_tokens for run in result.runs for answer in run.answers)
    return summary


def _mode(result: BenchResult, mode: Mode) -> dict[str, Any]:
    indices = [index for index, cell in enumerate(result.cells) if cell.mode == mode]
    base = next(index for index in indices if result.cells[index].is_baseline)
    groups = _groups(result, base, mode)
    rows = [_row(result, index, groups, _runs(result, base)) for index in indices]
    best = max((row for row in rows if _is_winner(row)), key=lambda row: row["speedup"]["value"], default=None)
    return {
        "name": mode.name,
        "temperature": mode.temperature,
        "batch_size": mode.batch_size,
        "num_prompts": len(result.prompts),
        "num_calm_prompts": sum(len(_members(result, mode)[group]) for group in groups.calm),
        "repeated_4grams": mean(groups.repeated.values()) if groups.repeated else None,
        "repeated_4grams_by_category": {
            name: mean([groups.repeated[g] for g in members if g in groups.repeated] or [0.0])
            for name, members in groups.by_category.items()
        },
        "num_prompts_by_category": {
            name: sum(len(_members(result, mode)[group]) for group in members)
            for name, members in groups.by_category.items()
        },
        "rows": rows,
        "best": best["label"] if best else None,
        "auto_against_best_fixed": _auto_against_best(rows, list(groups.by_category)),
    }


def _is_winner(row: dict[str, Any]) -> bool:
    """Whether a row may be called the best: a drafter of the same tokens that does not know the answer."""
    return row["speedup"] is not None and row["promise"] == "tokens" and not row["is_baseline"] and row["is_real"]


def _row(result: BenchResult, index: int, groups: _Groups, plain_runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of a cell, all of the same sample: the prompts and rounds that it shares with plain decoding."""
    cell, runs = result.cells[index], _runs(result, index)
    answers = [answer for run in runs for answer in run.answers]
    gate = _gate(cell, answers, result.refused.get(index))
    row: dict[str, Any] = {
        "label": cell.label,
        "drafter": cell.drafter.partition("=")[0] if "," not in cell.drafter else cell.label,
        "verifier": cell.verifier,
        "promise": cell.promise,
        "is_baseline": cell.is_baseline,
        "is_real": not cell.drafter.startswith("synthetic"),
        "gate": gate,
        "tok_per_s": None,
        "speedup": None,
        "verdict": None,
        "speedup_calm": None,
        "by_category": {},
    }
    runs, plain_runs = metrics.same_sample(runs, plain_runs)
    if gate["status"] in ("failed", "refused") or not runs:
        return row
    answers = [answer for run in runs for answer in run.answers]
    units, plain = metrics.units_of(runs), metrics.units_of(plain_runs)
    speedup = metrics.speedup(units, plain, groups.all)
    ms, plain_ms = metrics.ms_per_pass(runs), metrics.ms_per_pass(plain_runs)
    brought, floor_ms = metrics.tokens_per_pass(runs), result.pass_cost["floor_ms"] if result.pass_cost else None
    return row | {
        "tok_per_s": _json(metrics.tok_per_s(units, groups.all)),
        "speedup": _json(speedup),
        "verdict": None if speedup is None or cell.is_baseline else speedup.verdict,
        "speedup_calm": _json(metrics.speedup(units, plain, groups.calm)),
        "by_category": {
            name: {
                "speedup": _json(metrics.speedup(units, plain, members)),
                "tok_per_s": _json(metrics.tok_per_s(units, members)),
            }
            for name, members in groups.by_category.items()
        },
        "tokens_per_step": metrics.tokens_per_step(answers),
        "nodes_per_pass": metrics.nodes_per_pass(runs),
        "accept_rate_at_depth": metrics.accept_rate_at_depth(answers),
        "drafted_at_depth": metrics.sum_at_depth([answer.drafted_at_depth for answer in answers]),
        "mean_accept_rate": metrics.mean_accept_rate(answers),
        "reliability": reliability([run.reliability for run in runs]),
        "ms_per_token": metrics.ms_per_token(runs),
        "step_cost": ms / plain_ms if ms and plain_ms else None,
        # The speed at which a pass takes no longer than reading the weights once.
        "light_tok_per_s": 1e3 * brought / floor_ms if brought and floor_ms else None,
    }


def _gate(cell: Cell, answers: Sequence[Answer], refusal: str | None) -> dict[str, Any]:
    """What the comparison with plain decoding found."""
    faults = [answer.fault for answer in answers if answer.fault]
    num_ties = sum(len(answer.near_ties) for answer in answers)
    if refusal is not None:
        status, reason = "refused", refusal
    elif faults:
        status, reason = "failed", f"{len(faults)} of {len(answers)} answers differ from plain decoding; {faults[0]}"
    elif cell.promise == "law":
        status, reason = "law", f"{cell.verifier} keeps the distribution of sampled answers, not their tokens"
    elif cell.promise == "nothing":
        status, reason = "lossy", f"{cell.verifier} is lossy: the output may differ"
    elif num_ties:
        status, reason = "near_ties", f"the same but for {num_ties} near-ties that rounding explains"
    else:
        status, reason = "same", "the same tokens as plain decoding"
    return {"status": status, "reason": reason, "num_answers": len(answers), "num_near_ties": num_ties}


def _groups(result: BenchResult, base: int, mode: Mode) -> _Groups:
    """Categories, and what the baseline's first answers say of each group."""
    by_category: dict[str, list[int]] = {}
    for number, members in enumerate(_members(result, mode)):
        by_category.setdefault(result.prompts[members[0]].category, []).append(number)
    repeated: dict[int, float] = {}
    for run in _runs(result, base):
        shares = [metrics.repeated_share(answer.token_ids or []) for answer in run.answers]
        known = [share for share in shares if share is not None]
        if run.repeat == 0 and known:
            repeated[run.group] = mean(known)
    calm = [group for group, share in repeated.items() if share < metrics.REPETITIVE]
    return _Groups(by_category, calm, repeated)


def _members(result: BenchResult, mode: Mode) -> list[list[int]]:
    return in_groups(result.prompts, mode.batch_size)


def _auto_against_best(rows: Sequence[dict[str, Any]], categories: Sequence[str]) -> dict[str, float] | None:
    """`auto` over the best fixed drafter of each category, found afterwards; None where there is nothing to compare."""
    auto = next((row for row in rows if row["label"] == "auto" and row["speedup"] is not None), None)
    fixed = [row for row in rows if row["label"] != "auto" and row["speedup"] is not None and row["is_real"]]
    fixed = [row for row in fixed if row["promise"] == "tokens"]
    if auto is None or len(fixed) < 2:
        return None
    found = {}
    for name in categories:
        own = auto["by_category"][name]["speedup"]
        others = [row["by_category"][name]["speedup"] for row in fixed]
        best = max((other["value"] for other in others if other), default=None)
        if own and best:
            found[name] = own["value"] / best
    return found


def _against_rivals(mode: dict[str, Any], peers: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How many times as fast as the fastest other engine `auto` is (the best drafter, where auto was not run)."""
    label = "auto" if any(row["label"] == "auto" for row in mode["rows"]) else mode["best"]
    own = next((row for row in mode["rows"] if row["label"] == label and row["tok_per_s"]), None)
    timed = [row for row in peers if row["tok_per_s"]]
    if own is None or not timed:
        return None
    found: dict[str, Any] = {"label": label}
    groups = {"any": timed, "8_bits_or_more": [row for row in timed if (row["bits"] or 0) >= _FAIR_BITS]}
    for name, rows in groups.items():
        if rows:
            fastest = max(rows, key=lambda row: row["tok_per_s"]["value"])
            ratio = own["tok_per_s"]["value"] / fastest["tok_per_s"]["value"]
            found[name] = {"fastest": fastest["label"], "times": ratio}
    return found


def _runs(result: BenchResult, index: int) -> list[Run]:
    return [run for run in result.runs if run.cell == index]


def _json(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.as_json()
