"""`foreword inspect`: what a model is, what it needs, and what can draft for it."""

import sys
from typing import Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.output import console, print_json


def inspect(
    model: Annotated[str | None, typer.Argument(help="A Hugging Face folder or hub id, or a GGUF file.")] = None,
    json: opt.Json = False,
) -> None:
    """Say what a model is, what it needs, and what can draft for it. Without MODEL: the default model."""
    from foreword.checkpoint.checkpoint import open_checkpoint
    from foreword.cli.model_facts import model_facts

    facts = model_facts(open_checkpoint(model, progress=sys.stderr.isatty()))
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
    rows = {
        "model": facts["model"],
        "family": facts["family"],
        "parameters": f"{millions:.1f}M, {streamed:.1f}M read a pass",
        "stored as": f"{facts['stored_as']}, {_size(facts['stored_bytes'])}",
        "layers": f"{sizes['num_layers']} of width {sizes['hidden_size']}, feed-forward {sizes['intermediate_size']}",
        "heads": f"{sizes['num_heads']} over {sizes['num_kv_heads']} key-value heads of {sizes['head_dim']}",
        "output head": f"{sizes['vocab_size']} rows, {head}",
        "context": f"{facts['context_len']} tokens",
        "tokenizer": f"{tokenizer['vocab_size']} tokens, {template}",
        "end tokens": ends,
        "weights in memory": ", ".join(f"{dtype} {_size(size)}" for dtype, size in facts["weight_bytes"].items()),
        "cache a token": ", ".join(f"{name} {_size(size)}" for name, size in facts["kv_bytes_per_token"].items()),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, str(value))
    screen = console()
    screen.print(table)
    screen.print("\nwhat can draft for it (--drafter NAME):")
    drafters = Table.grid(padding=(0, 2))
    for name, text in facts["drafters"].items():
        drafters.add_row(f"  {name}", text)
    screen.print(drafters)


def _size(num_bytes: int) -> str:
    """Bytes in a unit for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
