"""`foreword inspect DRAFTER --model TARGET`: what a trained drafter is, whether it fits, what it gains."""

import json
from typing import Any

from foreword.cli.output import console, print_json
from foreword.cli.render.byte_sizes import size_text

_LABELS = {
    "drafter": "drafter",
    "path": "path",
    "layout": "layout",
    "made_for": "made for",
    "num_heads": "heads",
    "num_layers": "layers",
    "layers_a_head": "layers per head",
    "has_biases": "biases",
    "outputs": "output matrices",
    "fc": "fc",
    "hidden_size": "hidden size",
    "num_parameters": "parameters",
    "num_contexts": "contexts",
    "num_continuations": "continuations",
    "vocab_size": "vocabulary",
    "draft_vocab_size": "draft vocabulary",
    "options": "options",
    "has_token_map": "token map",
    "taps": "auxiliary hidden states",
    "borrows": "shared with the target",
    "tree": "tree",
    "head_accuracies": "accuracy by head",
    "stored_bytes": "size",
}


def inspect_drafter(
    kind: str,
    path: str,
    model: str | None,
    *,
    draft_vocab: str | None = None,
    measures: bool,
    as_json: bool,
    runtime: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> None:
    """Describe the files, try them beside the target, and measure."""
    from foreword.bench.drafter_facts import drafter_facts, fit_facts, pairing_notes, trim_notes
    from foreword.target.load_model import load_model

    facts = drafter_facts(kind, path)
    target = load_model(model, runtime=runtime, dtype=dtype, threads=threads)
    if kind == "draft_model":
        facts["notes"] = pairing_notes(path, target)
    if draft_vocab is not None:  # a wrong list is the user's mistake, and no misfit
        facts["notes"] = [*facts["notes"], *trim_notes(kind, path, draft_vocab, target)]
    facts["fit"] = fit_facts(kind, path, target, measures, draft_vocab)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for key, label in _LABELS.items():
        if facts.get(key) not in (None, []):
            table.add_row(label, _text(key, facts[key]))
    screen, fit = console(), facts["fit"]
    screen.print(table)
    for line in facts["notes"]:
        screen.print(f"note: {line}")
    if not fit["fits"]:
        screen.print(f"\ndoes not fit {fit['target']}: {fit['reason']}")
        return
    screen.print(f"\nfits {fit['target']}: use it with {_use(facts)}", soft_wrap=True)
    if (measured := fit["measured"]) is not None:
        depths = ", ".join(f"{rate:.2f}" for rate in measured["accept_rate_at_depth"])
        prompts = ", ".join(
            f"{name} {tokens:.2f}" for name, tokens in measured["tokens_per_step_by_prompt"].items() if tokens
        )
        screen.print(
            f"{measured['tokens_per_step']:.2f} tokens per step with {measured['num_speculative_tokens']} drafted ({prompts}), "
            f"{measured['runtime']} {measured['dtype']}; accepted by depth {depths}"
        )


def _use(facts: dict[str, Any]) -> str:
    """The option that names it."""
    if (draft_vocab := facts["fit"]["draft_vocab"]) is None:
        return f"--drafter {facts['drafter']}={facts['path']}"
    settings = {"method": facts["drafter"], "model": facts["path"], "draft_vocab": draft_vocab}
    return f"--speculative-config '{json.dumps(settings)}'"


def _text(key: str, value: Any) -> str:
    if key == "stored_bytes":
        return size_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
