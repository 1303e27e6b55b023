"""`foreword profile`: what a pass of n nodes costs on this machine, beside the least it could cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import console, note, print_json
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.bench.pass_cost import PassCost

_BAR_WIDTH = 40

Widths = Annotated[str, typer.Option(help="Nodes per pass, separated by commas.")]
Context = Annotated[int, typer.Option(help="Committed tokens that every pass attends to.")]
Repeats = Annotated[int, typer.Option(help="Passes of each width; the median counts.")]
Plot = Annotated[Path | None, typer.Option(help="Write the curve as an SVG picture.")]


def profile(
    model: opt.Model = None,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    isa: opt.Isa = "auto",
    share_weights: opt.ShareWeights = False,
    widths: Widths = "1,2,4,8,16,32",
    context: Context = 256,
    repeats: Repeats = 30,
    plot: Plot = None,
    json: opt.Json = False,
) -> None:
    """Measure the cost of a pass by its width, with every node's head and sampling included."""
    sizes = _parse_widths(widths)
    for name, value in (("context", context), ("repeats", repeats)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; allowed: 1 or above")
    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise ConfigError(f"--plot is {plot}; allowed: a file in a folder that exists")

    from foreword.bench.pass_cost import measure_pass_cost
    from foreword.engine.llm import load_model

    loaded = load_model(
        model,
        runtime=runtime,
        dtype=dtype,
        kv_dtype=kv_dtype,
        isa=isa,
        threads=threads,
        share_weights=share_weights,
        show_progress=True,
    )
    needed, room = context + max(sizes), loaded.checkpoint.spec.context_len
    if needed > room:
        raise ConfigError(f"context and widest pass take {needed} tokens; the model's context holds {room}")
    cost = measure_pass_cost(loaded.decoder, sizes, context, repeats=repeats, threads=loaded.threads)
    choice = loaded.choice
    title = f"{loaded.checkpoint.source}, {choice.name} {choice.dtype} {choice.isa}".rstrip()
    if plot is not None:
        from foreword.bench.plot import pass_cost_svg

        plot.write_text(pass_cost_svg(cost, title))
        note(f"wrote {plot}")
    if json:
        print_json(
            {
                "widths": {str(n): {"ms": ms} for n, ms in cost.ms_by_width.items()},
                "floor_ms": cost.floor_ms,
                "runtime": loaded.choice.name,
                "dtype": loaded.choice.dtype,
                "kv_dtype": loaded.choice.kv_dtype,
                "isa": loaded.choice.isa,
                "context": cost.context_len,
                "bandwidth_gb_per_s": cost.bandwidth_gb_per_s,
                "weight_bytes": cost.weight_bytes,
                "model": loaded.checkpoint.source,
            }
        )
        return
    _print(cost, title)


def _parse_widths(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--widths is {text!r}; allowed: whole numbers of 1 or above, such as 1,2,4,8")
    return sorted(set(sizes))


def _print(cost: "PassCost", title: str) -> None:
    from rich.table import Table

    one = cost.ms_by_width.get(1) or min(cost.ms_by_width.values())
    top = max(cost.ms_by_width.values())
    table = Table(title=f"{title}: a pass after {cost.context_len} tokens")
    for column in ("nodes", "ms", "of one", "of the floor"):
        table.add_column(column, justify="right")
    table.add_column("")
    for n, ms in cost.ms_by_width.items():
        bar = "█" * max(1, round(_BAR_WIDTH * ms / top))
        table.add_row(str(n), f"{ms:.2f}", f"{ms / one:.2f}", f"{ms / cost.floor_ms:.2f}", bar)
    screen = console()
    screen.print(table)
    screen.print(
        f"floor {cost.floor_ms:.2f} ms: {cost.weight_bytes / 1e6:.0f} MB of weights at {cost.bandwidth_gb_per_s:.1f} GB/s, "
        f"read with the same threads"
    )
