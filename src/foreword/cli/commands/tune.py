"""`foreword tune`: should I use speculation for my model on my machine, and which?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import count_text, note, print_json, time_bar
from foreword.cli.prompt_file import PromptLine, check_limit, read_prompts
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.engine.llm import LLM
    from foreword.tune.candidates import Candidate
    from foreword.tune.measure import TunePrompt

_TUNE = "Tuning"
_MAX_TOKENS = 96
_OUT = Path("foreword-profile.json")


def tune(
    model: opt.Model = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Prompts like those you will use, as for generate. Default: a few short ones of different kinds.",
            rich_help_panel=_TUNE,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first prompts.", rich_help_panel=_TUNE)] = None,
    drafters: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help='What to try; "+" merges the trees of several drafters. Default: all that need no training, and trained ones '
            "made for this model.",
            rich_help_panel=_TUNE,
        ),
    ] = None,
    draft_model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A smaller model to try as well; repeatable.", rich_help_panel=_TUNE),
    ] = None,
    time_budget: Annotated[
        str, typer.Option(help="For the measurements, without loading: 90s, 2m, 1h.", rich_help_panel=_TUNE)
    ] = "2m",
    out: Annotated[Path, typer.Option(help="Where the profile goes.", rich_help_panel=_TUNE)] = _OUT,
    json: opt.Json = False,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    isa: opt.Isa = "auto",
    temperature: opt.Temperature = opt.DEFAULTS.temperature,
    seed: Annotated[int, typer.Option(help="Of sampled answers.", rich_help_panel="Sampling")] = 1,
    max_tokens: Annotated[
        int, typer.Option(help="Most new tokens per answer.", rich_help_panel="Sampling")
    ] = _MAX_TOKENS,
) -> None:
    """Measure which drafter and settings are fastest for a model on this machine, if any, and write a profile for --profile."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    if max_tokens < 2:
        raise ConfigError(f"--max-tokens is {max_tokens}; allowed: 2 or above, or there is nothing to time")
    check_limit(limit)
    budget_s = opt.parse_duration("--time-budget", time_budget)
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"--out is {out}; allowed: a file in a folder that exists")
    lines = None if prompts is None else read_prompts(prompts, limit)

    from foreword.cli.render.tune_report import as_json, print_report
    from foreword.engine.llm import load_model
    from foreword.engine.profile_file import write_profile
    from foreword.runtime.native_runtime import NativeRuntime
    from foreword.tune.candidates import parse_candidates
    from foreword.tune.measure import Bench
    from foreword.tune.recommendation import profile_of
    from foreword.tune.search import Search

    named = None if drafters is None else parse_candidates(drafters)
    loaded = load_model(
        model,
        runtime=runtime,
        dtype=dtype,
        kv_dtype=kv_dtype,
        isa=isa,
        threads=threads,
        show_progress=sys.stderr.isatty(),
    )
    if threads is None and isinstance(loaded.runtime, NativeRuntime):
        loaded.runtime.find_threads(loaded.decoder, getattr(loaded.checkpoint, "fingerprint", None), anew=True)
    bench = Bench(loaded, params)
    asked = _prompts(bench.plain, lines, limit)
    candidates = _candidates(bench.plain, named, draft_model or [])
    note(
        f"{loaded.checkpoint.source} on {loaded.choice.name} {loaded.choice.dtype}: {count_text(len(candidates), 'candidate')}, "
        f"{count_text(len(asked), 'prompt')}, at most {budget_s:.0f} s"
    )
    with time_bar("measuring", budget_s) as tick:
        outcome = Search(bench, asked, budget_s, note, tick).run(candidates)
    found = profile_of(outcome)
    write_profile(out, found)
    if json:
        print_json(as_json(outcome, found, out))
    else:
        print_report(outcome, out)


def _prompts(llm: "LLM", lines: list[PromptLine] | None, limit: int | None) -> list["TunePrompt"]:
    """Ready to run; plain text where the model has no chat template."""
    from foreword.cli.conversation import Conversation, own_prompts
    from foreword.tune.default_prompts import PROMPTS
    from foreword.tune.measure import TunePrompt

    lines = own_prompts(llm, PROMPTS, limit) if lines is None else lines
    begun = [Conversation.begin(llm, line) for line in lines]
    return [TunePrompt(c.prompt_ids, c.drafting) for c in begun]


def _candidates(llm: "LLM", named: "list[Candidate] | None", draft_models: list[str]) -> "list[Candidate]":
    """What to try. Draft models that are named come beside the others."""
    from foreword.tune.candidates import default_candidates, draft_model

    if named is not None:
        return [*named, *map(draft_model, draft_models)]
    return default_candidates(getattr(llm.model.checkpoint, "fingerprint", None), draft_models)
