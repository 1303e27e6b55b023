"""`foreword export`: a trained drafter in the files that another engine loads."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import note


def export(
    drafter: Annotated[
        str,
        typer.Argument(
            metavar="DRAFTER", help="Its folder or hub id, or the kind of one that lies with the model: eagle3."
        ),
    ],
    to: Annotated[str, typer.Option(help="The engine: vllm, sglang, llama.cpp or speculators.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write; it must not exist yet.")],
    model: opt.Model = None,
    check: Annotated[bool, typer.Option(help="Read it back and draft with it before it is called done.")] = True,
    threads: opt.Threads = None,
) -> None:
    """Write a drafter for vLLM, SGLang, llama.cpp or speculators, and print the command that uses it."""
    from foreword.export.folder import export as write
    from foreword.export.source import open_drafter
    from foreword.target.load_model import load_model

    loaded = load_model(model, threads=threads, show_progress=sys.stderr.isatty())
    line = write(open_drafter(drafter, loaded.checkpoint), to, out, loaded, checks=check)
    note(f"wrote {out}; use it with:")
    print(line)
