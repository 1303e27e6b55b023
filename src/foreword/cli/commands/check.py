"""`foreword check`: your own proof, on your own model and prompts, that drafting changes no token."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.output import count_text, print_json, progress_bar
from foreword.cli.prompt_file import PromptLine, check_limit, read_prompts
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.bench.check_run import Mode, Prompt
    from foreword.draft.draft_config import DraftConfig
    from foreword.engine.llm import LLM

_PROMPTS = "Prompts"
_TEMPERATURE = 0.8


def check(
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="As for generate; of several turns the first. Default: the prompts of demo.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first prompts.", rich_help_panel=_PROMPTS)] = None,
    json: opt.Json = False,
    model: opt.Model = None,
    drafter: opt.Drafter = None,
    speculative_config: opt.SpeculativeConfig = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = None,
    adaptive: opt.Adaptive = False,
    profile: opt.Profile = None,
    verifier: opt.Verifier = "match",
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    batch_size: Annotated[
        int, typer.Option(help="Above 1: run the prompts in batches of this size as well.", rich_help_panel="Model")
    ] = 1,
    temperature: Annotated[
        float,
        typer.Option(
            help="Of the sampled answers, in addition to greedy ones; 0: greedy only.", rich_help_panel="Sampling"
        ),
    ] = _TEMPERATURE,
    seed: opt.Seed = None,
    max_tokens: opt.MaxTokens = opt.DEFAULTS.max_tokens,
) -> None:
    """Compare answers with and without a drafter, token by token. Exit code 1 where they differ."""
    params = SamplingParams(max_tokens=max_tokens, seed=seed).with_seed()
    sampled = SamplingParams(max_tokens=max_tokens, seed=params.seed, temperature=temperature)
    if max_tokens < 1:
        raise ConfigError(f"--max-tokens is {max_tokens}; allowed: 1 or above, or nothing is compared")
    check_limit(limit)
    lines = None if prompts is None else read_prompts(prompts, limit)
    draft = opt.draft_options(drafter, speculative_config, num_speculative_tokens, adaptive, profile)

    from foreword.bench.check_run import Mode, num_answers, promise_of, run_modes
    from foreword.cli.render.check_report import Report

    options = {"runtime": runtime, "dtype": dtype, "kv_dtype": kv_dtype, "threads": threads}
    llm = _load(model, draft, verifier=verifier, batch_size=batch_size, **options)
    given = _prompts(llm, lines, limit)
    modes, left_out = _modes(promise_of(llm.engine.parts.verifier), Mode("greedy", params), sampled)
    if not json:
        _print_head(llm, given, params)
    with progress_bar("answers", num_answers(len(given), len(modes), batch_size), data_comes_after=True) as advance:
        runs = list(run_modes(llm, given, modes, batch_size, advance))
    report = Report(llm, given, runs, left_out)
    if json:
        print_json(report.as_json() | {"provenance": _provenance(llm, prompts, params)})
    else:
        report.print()
    raise typer.Exit(1 if report.num_faults else 0)


def _load(model: str | None, draft: dict[str, Any], **options: Any) -> "LLM":
    from foreword.engine.llm import LLM

    chosen = _chosen(draft)
    if chosen.method == "none":
        raise ConfigError("check compares a drafter with plain decoding, which is what 'none' is; name another one")
    return LLM(model, show_progress=sys.stderr.isatty(), prefix_cache=False, **draft, **options)


def _chosen(draft: dict[str, Any]) -> "DraftConfig":
    """What the options of speculation come to."""
    from foreword.draft.draft_config import draft_config, parse_draft_config
    from foreword.engine.profile_file import read_profile

    if "speculative_config" in draft:
        return parse_draft_config(draft["speculative_config"])
    if draft["drafter"] is None and "profile" in draft:
        return read_profile(draft["profile"]).draft_config
    return draft_config(draft["drafter"] or {})


def _prompts(llm: "LLM", lines: list[PromptLine] | None, limit: int | None) -> list["Prompt"]:
    """Ready to run; without a file those of the demo, as plain text where the model has no chat template."""
    from foreword.bench.check_run import Prompt
    from foreword.bench.demo_prompts import PROMPTS
    from foreword.cli.conversation import Conversation, own_prompts

    lines = own_prompts(llm, PROMPTS, limit) if lines is None else lines
    begun = [Conversation.begin(llm, line) for line in lines]
    return [Prompt(c.line.id, c.prompt_ids, c.drafting) for c in begun]


def _modes(promise: str, greedy: "Mode", sampled: SamplingParams) -> tuple[list["Mode"], str | None]:
    """Greedy and sampled, and why sampled is left out where it is."""
    from foreword.bench.check_run import Mode

    if sampled.temperature == 0:
        return [greedy], None
    name = f"temperature {sampled.temperature:g}"
    if promise == "law":
        return [greedy], (
            f"{name} is left out: this verifier keeps the distribution of sampled answers, not their tokens, so they cannot be "
            f"compared token by token; --verifier match can"
        )
    return [greedy, Mode(name, sampled)], None


def _print_head(llm: "LLM", prompts: list["Prompt"], params: SamplingParams) -> None:
    model, choice = llm.model.checkpoint, llm.model.choice
    print(f"model    {model.source}, {model.spec.num_parameters / 1e6:.0f}M parameters")
    print(f"runtime  {choice.name} {choice.dtype} on {choice.device}: {choice.reason}")
    print(f"drafter  {llm.config.method}, at most {llm.config.num_speculative_tokens} tokens ahead")
    print(
        f"answers  to {count_text(len(prompts), 'prompt')}, at most {params.max_tokens} tokens each, seed {params.seed}",
        flush=True,
    )


def _provenance(llm: "LLM", prompts: Path | None, params: SamplingParams) -> dict[str, Any]:
    """What was run, and where, so that it can be run again."""
    import hashlib
    import platform
    from importlib.metadata import version

    from foreword import __version__
    from foreword.checkpoint.opened import Checkpoint

    checkpoint, choice = llm.model.checkpoint, llm.model.choice
    return {
        "foreword": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "platform": f"{platform.system()} {platform.machine()}",
        "model": checkpoint.source,
        "model_sha256": checkpoint.fingerprint if isinstance(checkpoint, Checkpoint) else None,
        "runtime": choice.name,
        "dtype": choice.dtype,
        "device": choice.device,
        "drafter": llm.config.settings,
        "verifier": llm.engine.parts.verifier.name,
        "batch_size": llm.engine.batch_size,
        "prompts": "demo" if prompts is None else str(prompts),
        "prompts_sha256": None if prompts is None else hashlib.sha256(prompts.read_bytes()).hexdigest(),
        "max_tokens": params.max_tokens,
        "seed": params.seed,
    }
