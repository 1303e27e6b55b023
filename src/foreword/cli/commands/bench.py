"""`foreword bench`: what drafting gains on this machine; the tokens are compared before any speed is reported."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.bench_run import (
    Tuned,
    begin,
    check_free,
    choose,
    encode,
    measure,
    resume_result,
    write_prompt_ids,
)
from foreword.cli.output import note
from foreword.cli.prompt_file import read_prompts
from foreword.draft.names import split_list
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.bench.results import BenchResult

_WHAT, _HOW, _OUT = "What is compared", "How", "Results"
_DRAFTERS = "none,ngram,suffix,auto"

Files = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[,FILE]",
        help="JSON lines as for generate; Spec-Bench and MT-bench files as they are. Default: the prompts of demo.",
        rich_help_panel=_WHAT,
    ),
]
Drafters = Annotated[
    str,
    typer.Option(
        metavar="NAME[=PATH][@SIZE][,...]",
        help="@ sets the most drafted tokens per step, + merges several into one. none, the baseline, is always included.",
        rich_help_panel=_WHAT,
    ),
]


def bench(
    prompts: Files = None,
    drafters: Drafters = _DRAFTERS,
    profile: opt.Profile = None,
    verifiers: Annotated[
        str, typer.Option(help=f"Separated by commas: {opt.VERIFIER_NAMES}.", rich_help_panel=_WHAT)
    ] = "match",
    temperatures: Annotated[str, typer.Option(help="Separated by commas; 0 is greedy.", rich_help_panel=_WHAT)] = "0",
    batch_sizes: Annotated[
        str, typer.Option(help="Prompts per batch, separated by commas.", rich_help_panel=_WHAT)
    ] = "1",
    stratified: Annotated[
        int | None,
        typer.Option(help="A fixed subset of this size, balanced over categories.", rich_help_panel=_WHAT),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first prompts.", rich_help_panel=_WHAT)] = None,
    max_tokens: Annotated[int, typer.Option(help="Most new tokens per answer.", rich_help_panel=_HOW)] = 128,
    repeats: Annotated[int, typer.Option(help="Runs of every cell, interleaved.", rich_help_panel=_HOW)] = 3,
    seed: Annotated[int, typer.Option(help="For sampled answers.", rich_help_panel=_HOW)] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the model's end token.", rich_help_panel=_HOW)
    ] = False,
    speed_of_light: Annotated[
        bool,
        typer.Option(
            help="Measure pass times and the memory bandwidth of this machine: some seconds.", rich_help_panel=_HOW
        ),
    ] = True,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Every raw measurement.", rich_help_panel=_OUT)
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="An HTML report.", rich_help_panel=_OUT)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="The results as a Markdown table.", rich_help_panel=_OUT)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the benchmark in --json.", rich_help_panel=_OUT)
    ] = False,
    render: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Measure nothing: show an earlier result.", rich_help_panel=_OUT),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[,FILE]", help="Measurements of other engines to show beside these.", rich_help_panel=_OUT
        ),
    ] = None,
    peers_prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The prompts of those measurements, as token ids.", rich_help_panel=_OUT),
    ] = None,
    write_prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only write the chosen prompts as token ids, for other engines.", rich_help_panel=_OUT
        ),
    ] = None,
    model: opt.Model = None,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    isa: opt.Isa = "auto",
) -> None:
    """Compare drafters with plain decoding: first the tokens, then the time. Exit code 1 where a drafter changes tokens."""
    outputs = {"--json": json, "--report": report, "--markdown": markdown, "--write-prompts": write_prompts}
    _check_outputs(outputs)
    if (peers is None) != (peers_prompts is None):
        raise ConfigError("--peers and --peers-prompts go together: the comparison, and the prompts it was asked")
    if resume and json is None:
        raise ConfigError("--resume continues the benchmark in --json FILE; name it")
    if render is not None:
        from foreword.bench.results import load_result

        raise typer.Exit(_show(load_result(render), json, report, markdown, peers, peers_prompts))
    for name, value in {"max-tokens": max_tokens, "repeats": repeats}.items():
        lowest = 2 if name == "max-tokens" else 1
        if value < lowest:
            raise ConfigError(f"--{name} is {value}; allowed: {lowest} or above")
    files = [Path(part) for part in _split("--prompts", prompts)] if prompts is not None else []
    if json is not None and json.exists() and not resume and write_prompts is None:
        check_free(json)
    lines = choose([line for file in files for line in read_prompts(file)], stratified, limit)

    from foreword.bench.cells import make_cells
    from foreword.engine.llm import load_model

    load_options: dict[str, Any] = {
        "runtime": runtime,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "isa": isa,
        "threads": threads,
    }
    tuned = Tuned(profile)
    load_options = tuned.load_options(load_options)
    cells = make_cells(
        tuned.beside(_split("--drafters", drafters)),
        _split("--verifiers", verifiers),
        [_number("--temperatures", text, float, 0.0) for text in _split("--temperatures", temperatures)],
        [_number("--batch-sizes", text, int, 1) for text in _split("--batch-sizes", batch_sizes)],
    )
    loaded = load_model(model, show_progress=sys.stderr.isatty(), **load_options)
    chosen = encode(loaded, lines, limit)
    if write_prompts is not None:
        write_prompt_ids(write_prompts, chosen)
        raise typer.Exit
    settings = {
        "max_tokens": max_tokens,
        "repeats": repeats,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "threads": loaded.threads,
        "stratified": stratified,
        "drafters": drafters,
        "speed_of_light": speed_of_light,
        **tuned.settings,
    }
    result = begin(loaded, files, chosen, cells, settings)
    if resume and json is not None and json.exists():
        result = resume_result(json, result)
    measure(loaded, chosen, result, json, tuned.options)
    raise typer.Exit(_show(result, json, report, markdown, peers, peers_prompts))


def _check_outputs(outputs: dict[str, Path | None]) -> None:
    for name, path in outputs.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"{name} is {path}; allowed: a file in a folder that exists")


def _split(option: str, text: str) -> list[str]:
    parts = split_list(text)
    if not all(parts):
        raise ConfigError(f"{option} is {text!r}; allowed: one or several, with commas between and none of them empty")
    return parts


def _number(option: str, text: str, kind: type, lowest: float) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = lowest - 1
    if not lowest <= value < 1e9:
        raise ConfigError(
            f"{option} has {text!r}; allowed: {'whole ' if kind is int else ''}numbers, {lowest:g} or above"
        )
    return value


def _show(
    result: "BenchResult",
    json: Path | None,
    report: Path | None,
    markdown: Path | None,
    peers: str | None,
    peers_prompts: Path | None,
) -> int:
    """Files and the table in the terminal; the exit code."""
    from foreword.bench.markdown import markdown as as_markdown
    from foreword.bench.peers import merge_peers
    from foreword.bench.report import html_page
    from foreword.bench.summary import summarise
    from foreword.cli.render.bench_table import print_summary
    from foreword.files import write_whole

    if peers is not None and peers_prompts is not None:
        found = [row for file in _split("--peers", peers) for row in merge_peers(result, Path(file), peers_prompts)]
        result.peers = list({row["label"]: row for row in found}.values())
    summary = summarise(result)
    data = result.as_json() | {"summary": summary}
    if json is not None:
        result.save(json, summary=summary)
    for path, make in ((report, html_page), (markdown, as_markdown)):
        if path is not None:
            write_whole(path, make(data))
    print_summary(data)
    for path in (json, report, markdown):
        if path is not None:
            note(f"wrote {path}")
    return 1 if any(row["gate"]["status"] == "failed" for mode in summary["modes"] for row in mode["rows"]) else 0
