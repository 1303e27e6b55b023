"""`foreword inspect`: what a model is, what it needs, what can draft for it; what a trained drafter is and gains."""

import sys
from typing import Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.output import console, print_json
from foreword.cli.render.byte_sizes import size_text
from foreword.errors import ConfigError


def inspect(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|DRAFTER]", help="A folder, hub id or file of a model or a trained drafter."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that the drafter is for; what is inspected is then a drafter.")
    ] = None,
    draft_vocab: opt.DraftVocab = None,
    measure: Annotated[bool, typer.Option(help="Measure a drafter on a few prompts.")] = True,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    threads: opt.Threads = None,
    json: opt.Json = False,
) -> None:
    """Describe a model, its memory needs and the drafters that fit it, or whether a drafter fits a model and what it gains.

    Without an argument: the default model. A drafter is tested with --model, or else with the default model.
    """
    from foreword.bench.drafter_facts import drafter_kind
    from foreword.target.load_model import check_model_name

    for name in (what, model):
        check_model_name(name)
    kind = None if what is None else drafter_kind(what)
    if what is not None and (kind is not None or model is not None):
        from foreword.cli.render.drafter_sheet import inspect_drafter

        inspect_drafter(
            kind or "draft_model", what, model, draft_vocab=draft_vocab,
            measures=measure, as_json=json, runtime=runtime, dtype=dtype, threads=threads,
        )  # fmt: skip
        return
    if draft_vocab is not None:
        raise ConfigError(
            "--draft-vocab trims the head of a drafter, and a model is inspected; name a drafter's folder"
        )
    _inspect_model(what or model, json)


def _inspect_model(model: str | None, json: bool) -> None:
    from foreword.checkpoint.opened import open_checkpoint
    from foreword.cli.render.model_sheet import adopted_facts, model_facts
    from foreword.errors import UnsupportedArchitectureError

    try:
        facts = model_facts(open_checkpoint(model, progress=sys.stderr.isatty()))
    except UnsupportedArchitectureError:  # what transformers holds is known only once it is loaded
        from foreword.target.load_model import load_model

        facts = adopted_facts(load_model(model))
    if json:
        print_json(facts)
    else:
        _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.table import Table

    sizes, tokenizer = facts["sizes"], facts["tokenizer"]
    ends = ", ".join(f"{token} {text!r}" for token, text in tokenizer["end_tokens"].items()) or "none"
    head = "the embedding, shared" if sizes["tied_head"] else "its own"
    template = "with chat template" if tokenizer["has_chat_template"] else "no chat template"
    millions, streamed = facts["num_parameters"] / 1e6, facts["num_streamed_parameters"] / 1e6
    stored = f"{facts['stored_as']}, {size_text(facts['stored_bytes'])}" if facts["stored_bytes"] else None
    rows = {
        "runs on": facts["runs_on"],
        "model": facts["model"],
        "family": facts["family"],
        "parameters": f"{millions:.1f}M, {streamed:.1f}M read per pass",
        "stored as": stored,
        "layers": f"{sizes['num_layers']} of width {sizes['hidden_size']}, feed-forward {sizes['intermediate_size']}",
        "heads": f"{sizes['num_heads']} over {sizes['num_kv_heads']} key-value heads of {sizes['head_dim']}",
        "output head": f"{sizes['vocab_size']} rows, {head}",
        "context": f"{facts['context_len']} tokens",
        "tokenizer": f"{tokenizer['vocab_size']} tokens, {template}",
        "end tokens": ends,
        "weights in memory": ", ".join(f"{dtype} {size_text(size)}" for dtype, size in facts["weight_bytes"].items()),
        "cache per token": ", ".join(f"{name} {size_text(size)}" for name, size in facts["kv_bytes_per_token"].items()),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, str(value))
    screen = console()
    screen.print(table)
    screen.print("\nwhat can draft for it (--drafter NAME):")
    drafters = Table.grid(padding=(0, 2))
    for name, text in facts["drafters"].items():
        drafters.add_row(f"  {name}", text)
    screen.print(drafters)
