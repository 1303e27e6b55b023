"""`foreword demo`: the same tokens, faster; and what the check finds when the acceptance rule is broken."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import console, note
from foreword.cli.render.difference_text import explain
from foreword.config import STEADY_METHOD
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.bench.demo_run import Case
    from foreword.bench.fidelity import Difference
    from foreword.engine.llm import LLM

_BUDGET_S = 60.0  # for the runs: with loading, the whole demo stays under two minutes
_ROUNDS = 3
_TEMPERATURE = 0.8


def demo(
    break_rule: Annotated[
        bool, typer.Option("--break", help="Plant a wrong acceptance rule and show the check catching it.")
    ] = False,
    model: opt.Model = None,
    drafter: opt.Drafter = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = None,
    profile: opt.Profile = None,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    threads: opt.Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled runs.")] = 7,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most new tokens per answer.")] = 80,
) -> None:
    """Generate a few answers with and without drafting: same tokens, fewer steps, less time."""
    greedy = SamplingParams(max_tokens=max_tokens)
    sampled = SamplingParams(max_tokens=max_tokens, temperature=_TEMPERATURE, seed=seed)

    from foreword.bench.demo_run import run_cases
    from foreword.checkpoint.cache import cache_folder
    from foreword.checkpoint.default_model import default_model_path
    from foreword.engine.llm import LLM

    if model is None and not default_model_path(cache_folder()).is_file():
        note("fetching the default model, SmolLM2-135M-Instruct: 98 MB, this once")
    options = {"runtime": runtime, "dtype": dtype, "threads": threads, "show_progress": sys.stderr.isatty()}
    if break_rule and drafter is None and profile is None:
        drafter = STEADY_METHOD  # a rule can only be caught where something is drafted, whether it pays or not
    draft = opt.draft_options(drafter, None, num_speculative_tokens, profile=profile)
    ahead = LLM(model, prefix_cache=False, **draft, **options)
    plain = LLM(ahead.model, "none", prefix_cache=False)
    _print_model(ahead)
    cases = _cases(ahead, {"greedy": greedy, f"temperature {_TEMPERATURE}": sampled})
    if break_rule:
        raise typer.Exit(_show_broken_rule(ahead, plain, cases))
    run_cases(plain, ahead, cases, rounds=_ROUNDS, budget_s=_BUDGET_S, on_answer=_print_answer)
    raise typer.Exit(_print_verdict(ahead, cases))


def _cases(llm: "LLM", modes: dict[str, SamplingParams]) -> list["Case"]:
    """Every prompt in every mode; plain text where the model has no chat template."""
    from foreword.bench.demo_prompts import PROMPTS
    from foreword.bench.demo_run import Case

    is_chat = llm.tokenizer.has_chat_template
    ids = {name: llm.encode([{"role": "user", "content": text}] if is_chat else text) for name, text in PROMPTS.items()}
    return [Case(name, mode, ids[name], params) for mode, params in modes.items() for name in PROMPTS]


def _print_model(llm: "LLM") -> None:
    model = llm.model
    choice = model.choice
    print(f"model    {model.checkpoint.source}, {model.checkpoint.spec.num_parameters / 1e6:.0f}M parameters")
    print(f"runtime  {choice.name} {choice.dtype} on {choice.device}: {choice.reason}")
    print(f"drafter  {llm.config.method}, at most {llm.config.num_speculative_tokens} tokens ahead")


def _print_answer(case: "Case") -> None:
    """The answer once: whether the other run says the same stands in the table."""
    print(f"\n--- {case.name}, {case.mode}")
    print(case.ahead[0].text)


def _print_verdict(llm: "LLM", cases: list["Case"]) -> int:
    """Table and summary; returns the exit code."""
    from statistics import median

    from rich.table import Table

    from foreword.bench.demo_run import differences, steps_of, tok_per_s

    table = Table(
        "prompt", "mode", "same tokens", "tokens", "tokens per step", "plain tok/s", "drafting tok/s", "ratio"
    )
    found: list[tuple[Case, Difference]] = []
    for case in cases:
        case_differences = differences(llm, case)
        found += [(case, difference) for difference in case_differences]
        num_tokens = str(case.ahead[0].stats.new_tokens)
        speeds = (steps_of(case.ahead).tokens, tok_per_s(case.plain), tok_per_s(case.ahead), case.speedup)
        table.add_row(case.name, case.mode, _same(case_differences), num_tokens, *map(_number, speeds))
    print()
    console().print(table)
    ratios = [case.speedup for case in cases if case.speedup is not None]
    if ratios:
        rounds = len(cases[0].ahead)
        print(f"ratio: {median(ratios):.2f} (median over answers; speeds are medians of {rounds} interleaved rounds)")
        ahead = steps_of([run for case in cases for run in case.ahead])
        plain = steps_of([run for case in cases for run in case.plain])
        if ahead.seconds and plain.seconds:
            cost = ahead.seconds / plain.seconds
            print(
                f"why: a step with drafts yields {ahead.tokens:.2f} tokens and takes as long as {cost:.2f} plain steps"
            )
    for case, difference in found:
        print(f"{case.name}, {case.mode}: {explain(llm, difference)}")
    print(f"same tokens: {_same([difference for _, difference in found])}")
    return 0 if all(difference.is_near_tie for _, difference in found) else 1


def _show_broken_rule(ahead: "LLM", plain: "LLM", cases: list["Case"]) -> int:
    """The same check on the right rule and on a planted wrong one; 0 if it passes the one and catches the other."""
    from foreword.bench.demo_run import differences
    from foreword.bench.planted_rule import AcceptEverything
    from foreword.engine.llm import LLM

    print("\nplanted: a rule that accepts every drafted token without asking the model")
    broken = LLM(ahead.model, ahead.config, verifier=AcceptEverything(), prefix_cache=False)
    caught, is_right_rule_clean = 0, True
    for case in cases:
        case.plain += plain.generate([case.prompt_ids], case.params)
        case.ahead += ahead.generate([case.prompt_ids], case.params)
        honest = differences(ahead, case)
        case.ahead[:] = broken.generate([case.prompt_ids], case.params)
        wrong = [difference for difference in differences(ahead, case) if not difference.is_near_tie]
        caught += bool(wrong)
        is_right_rule_clean &= all(difference.is_near_tie for difference in honest)
        print(f"\n--- {case.name}, {case.mode}")
        print(f"verifier match              same tokens: {_same(honest)}")
        reasons = "".join(f", {explain(ahead, difference)}" for difference in wrong)
        print(f"verifier accept everything  same tokens: {_same(wrong)}{reasons}")
    print(f"\nthe check caught the planted rule in {caught} of {len(cases)} answers")
    if not caught:
        print("nothing was caught: this drafter proposed nothing wrong; try another --drafter or more --max-tokens")
    return 0 if caught and is_right_rule_clean else 1


def _same(differences: list["Difference"]) -> str:
    if not differences:
        return "yes"
    if any(not difference.is_near_tie for difference in differences):
        return "NO"
    ties = len(differences)
    return f"yes, but for {ties} near-tie{'s' if ties > 1 else ''}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
