"""Other engines beside ours: rows of a comparison that was run elsewhere, if it was the same comparison.

A file of rounds as `compare.py` of the peers' folder writes it:

    {"machine": {"cpu"}, "settings": {"max_new", "threads", "ignore_eos"}, "rounds": [{"peer/precision/mode": [row, ...]}]}
    row: {"prompt_id", "category", "decode_tokens", "decode_s", "token_ids", "accepted"?, ...}

and the prompts that it read, JSON lines of {"id", "category", "ids"}. A comparison is taken only where machine, threads
and length are ours and every one of our prompts was asked with the same token ids; else it is refused with the reason.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from foreword.bench.intervals import ratio_of_rates
from foreword.bench.metrics import repeated_share
from foreword.bench.results import BenchResult
from foreword.bench.workloads import BenchPrompt, ids_sha256
from foreword.errors import ConfigError

_OWN = "foreword"  # our own rows of such a comparison: we have better ones


def prompts_for_peers(prompts: Sequence[BenchPrompt]) -> str:
    """Our prompts as the peers read them: JSON lines."""
    lines = [{"id": p.id, "category": p.category, "ids": list(p.token_ids)} for p in prompts]
    return "".join(json.dumps(line) + "\n" for line in lines)


def merge_peers(result: BenchResult, comparison: Path, prompts: Path) -> list[dict[str, Any]]:
    """Rows of the other engines in a comparison, as they belong in `result.peers`."""
    data = _read_json(comparison)
    for key in ("machine", "settings", "rounds"):
        if not isinstance(data, Mapping) or key not in data:
            raise ConfigError(f"{comparison} is no comparison of peers: it has no {key!r}")
    _check_conditions(result, data, comparison)
    names = _names_of_ours(result, prompts)
    labels = list(dict.fromkeys(label for round_ in data["rounds"] for label in round_))
    rows = []
    for label in labels:
        if label.split("/")[0] == _OWN:
            continue
        found = [round_[label] for round_ in data["rounds"] if round_.get(label)]
        rows.append(_row(result, label, found, names, comparison))
    if not rows:
        raise ConfigError(f"{comparison} has no rows of engines other than {_OWN}")
    return rows


def _check_conditions(result: BenchResult, data: Mapping[str, Any], path: Path) -> None:
    ours, theirs = result.settings, data["settings"]
    machine = result.provenance.get("machine", {}).get("cpu", {}).get("name")
    pairs = {
        "most new tokens": (ours["max_tokens"], theirs.get("max_new")),
        "threads": (ours["threads"], theirs.get("threads")),
        "ignore_eos": (ours["ignore_eos"], theirs.get("ignore_eos")),
        "processor": (machine, data["machine"].get("cpu")),
    }
    for what, (own, their) in pairs.items():
        if own != their:
            raise ConfigError(f"{path} cannot stand beside this result: {what} is {their!r} there and {own!r} here")


def _names_of_ours(result: BenchResult, path: Path) -> dict[str, str]:
    """The peers' name of each of our prompts -> ours, by token ids."""
    by_hash = {prompt.sha256: prompt.id for prompt in result.prompts}
    names: dict[str, str] = {}
    for line in _lines(path):
        ours = by_hash.get(ids_sha256(line.get("ids") or ()))
        if ours is not None:
            names[str(line.get("id"))] = ours
    missing = [prompt.id for prompt in result.prompts if prompt.id not in set(names.values())]
    if missing:
        raise ConfigError(
            f"{path} lacks {len(missing)} of our {len(result.prompts)} prompts with the same token ids, the first is "
            f"{missing[0]!r}; give the peers the file that --write-prompts writes"
        )
    return names


def _row(
    result: BenchResult, label: str, rounds: Sequence[Sequence[Mapping[str, Any]]], names: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """One engine in one mode."""
    by_prompt = _by_prompt(rounds, names)
    category = {prompt.id: prompt.category for prompt in result.prompts}
    missing = [name for name in category if name not in by_prompt]
    if missing:
        raise ConfigError(f"{path}: {label} did not answer {len(missing)} of our prompts, such as {missing[0]!r}")
    tokens = {name: rows[0]["decode_tokens"] for name, rows in by_prompt.items()}
    seconds = {name: median(row["decode_s"] for row in rows) for name, rows in by_prompt.items()}

    def rate(members: Sequence[str]) -> dict[str, Any] | None:
        timed = [name for name in members if tokens[name] and seconds[name] > 0]
        if not timed:
            return None
        return ratio_of_rates([tokens[n] for n in timed], [seconds[n] for n in timed], None, None).as_json()

    engine, precision, mode = [*label.split("/"), "", ""][:3]
    first = [rows[0] for rows in by_prompt.values()]
    shares = [share for row in first if (share := repeated_share(row["token_ids"])) is not None]
    accepted = [row["accepted"] for row in first if row.get("accepted") is not None]
    num_tokens = sum(tokens.values())
    return {
        "label": label,
        "engine": engine,
        "precision": precision,
        "mode": mode,
        "bits": bits_of(precision),
        "versions": next((row["versions"] for rows in rounds for row in rows if "versions" in row), {}),
        "num_rounds": len(rounds),
        "tok_per_s": rate(list(category)),
        "by_category": {
            name: rate([prompt for prompt, own in category.items() if own == name])
            for name in dict.fromkeys(category.values())
        },
        "tokens_per_step": num_tokens / (num_tokens - sum(accepted)) if accepted else None,
        "repeated_4grams": mean(shares) if shares else None,
    }


def _by_prompt(
    rounds: Sequence[Sequence[Mapping[str, Any]]], names: Mapping[str, str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Its rows of all rounds, by our name of the prompt."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in (row for rows in rounds for row in rows if "prompt_id" in row):
        ours = names.get(str(row["prompt_id"]))
        if ours is not None:
            found.setdefault(ours, []).append(row)
    return found


def bits_of(precision: str) -> int | None:
    """Bits per weight, from the name of a precision: "bf16", "q8_0", "int4"; None where it does not tell."""
    digits = "".join(c if c.isdigit() else " " for c in precision).split()
    return int(digits[0]) if digits else None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the comparison {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"the comparison {path} is not JSON: {error}") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except OSError as error:
        raise ConfigError(f"the peers' prompts {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"the peers' prompts {path} are not JSON lines: {error}") from error
