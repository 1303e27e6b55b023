"""The work of `foreword bench`: from lines of prompts to a measured result."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.cli import options as opt
from foreword.cli.output import note
from foreword.cli.prompt_file import PromptLine, check_limit
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.bench.results import BenchResult
    from foreword.bench.workloads import BenchPrompt
    from foreword.engine.llm import LoadedModel


class Tuned:
    """What `foreword tune` found, beside the named drafters; nothing where no file is given."""

    def __init__(self, profile: Path | None) -> None:
        self._profile = profile
        self.options = None if profile is None else opt.draft_options(None, None, None, profile=profile)

    def beside(self, named: list[str]) -> list[str]:
        """The named drafters, and it."""
        from foreword.bench.cells import PROFILE

        if PROFILE in named:
            raise ConfigError(f"--drafters names {PROFILE!r}, which is no drafter; give the file with --profile FILE")
        return named if self._profile is None else [*named, PROFILE]

    @property
    def settings(self) -> dict[str, Any]:
        """For the result: another file is another benchmark."""
        return {} if self._profile is None else {"profile_sha256": sha256(self._profile.read_bytes()).hexdigest()}

    def load_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """How the model is run: as asked for, else as the file says."""
        from foreword.engine.profile_file import read_profile

        return given if self._profile is None else read_profile(self._profile).load_options(given)


def choose(lines: list[PromptLine], count: int | None, limit: int | None) -> list[PromptLine]:
    """The fixed subset or the first, under the categories that are reported."""
    from foreword.bench.workloads import merge_topics, stratified

    check_limit(limit)
    if not lines and count is not None:
        raise ConfigError("--stratified goes with --prompts")
    categories = merge_topics([line.category for line in lines])
    lines = [replace(line, category=category) for line, category in zip(lines, categories, strict=True)]
    if count is not None:
        lines = [lines[index] for index in stratified([str(line.id) for line in lines], categories, count)]
    return lines[:limit]


def encode(model: "LoadedModel", lines: Sequence[PromptLine], limit: int | None = None) -> list["BenchPrompt"]:
    """Token ids of all prompts, checked; without a file those of the demo, at most the first `limit`."""
    from foreword.bench.demo_prompts import PROMPTS
    from foreword.bench.workloads import NO_CATEGORY, BenchPrompt, check_ids
    from foreword.cli.conversation import Conversation, own_prompts
    from foreword.engine.llm import LLM

    llm = LLM(model, "none", batch_size=1)
    if not lines:
        lines = [replace(line, category=str(line.id)) for line in own_prompts(llm, PROMPTS, limit)]
    begun = [Conversation.begin(llm, line) for line in lines]
    prompts = [
        BenchPrompt(str(c.line.id), c.line.category or NO_CATEGORY, tuple(c.prompt_ids), c.line.reference)
        for c in begun
    ]
    check_ids(prompts)
    return prompts


def write_prompt_ids(path: Path, prompts: Sequence["BenchPrompt"]) -> None:
    """The prompts as other engines read them."""
    from foreword.bench.peers import prompts_for_peers
    from foreword.files import write_whole

    write_whole(path, prompts_for_peers(prompts))
    note(f"wrote {len(prompts)} prompts to {path}")


def begin(
    model: "LoadedModel", files: Sequence[Path], prompts: Sequence["BenchPrompt"], cells: Any, settings: dict[str, Any]
) -> "BenchResult":
    """A result without runs."""
    from foreword.bench.machine_facts import machine_facts
    from foreword.bench.provenance import provenance
    from foreword.bench.results import BenchResult, PromptFacts

    machine = {key: value for key, value in machine_facts().items() if key in ("python", "platform", "cpu", "torch")}
    facts = [PromptFacts(p.id, p.category, len(p.token_ids), p.sha256) for p in prompts]
    found = provenance(model, files, machine)
    if found["is_dirty"]:
        note(f"the source differs from commit {found['commit']}: this result cannot be measured again as it was")
    return BenchResult(settings, found, facts, cells)


def resume_result(path: Path, wanted: "BenchResult") -> "BenchResult":
    """What a file holds of the same benchmark; `ConfigError` where it is another one."""
    from foreword.bench.results import check_same, load_result

    kept = load_result(path)
    check_same(kept, wanted, path)
    kept.provenance.setdefault("resumed", []).append(wanted.provenance["date"])
    note(f"going on with {path}: {len(kept.runs)} runs are there")
    return kept


def check_free(path: Path) -> None:
    """Refuse to write over hours of measurements, or over what is no result at all."""
    from foreword.bench.results import load_result

    try:
        is_complete = load_result(path).is_complete
    except ConfigError as error:
        raise ConfigError(f"--json would overwrite {path}, which is no result: {error}") from error
    if is_complete:
        raise ConfigError(
            f"{path} holds a finished benchmark: name another file in --json, or delete it to measure anew"
        )
    raise ConfigError(f"{path} is a benchmark that was stopped: --resume continues it; delete it to start again")


def measure(
    model: "LoadedModel",
    prompts: Sequence["BenchPrompt"],
    result: "BenchResult",
    json: Path | None,
    tuned: dict[str, Any] | None = None,
) -> None:
    """Everything that the result still lacks. `tuned` are options of `LLM` that bring a profile."""
    from functools import partial

    from foreword.bench.runner import Runner, make_llm
    from foreword.cli.render.bench_progress import progress

    def save() -> None:
        if json is not None:
            result.save(json)

    if result.settings["speed_of_light"] and result.pass_cost is None:
        note("measuring what passes cost")
        result.pass_cost = _pass_cost(model, result.settings["threads"])
    runner = Runner(model, prompts, result, save=save, make=partial(make_llm, tuned=tuned))
    try:
        with progress(runner.num_left) as advance:
            runner.on_run = advance
            runner.run()
    except KeyboardInterrupt:
        save()
        note(_kept(json, len(result.runs), runner.num_left))
        raise


def _kept(json: Path | None, num_runs: int, num_left: int) -> str:
    """What a stopped benchmark leaves, and how it is resumed."""
    if json is None:
        return "nothing is kept: with --json FILE a benchmark can be stopped and gone on with"
    return f"{json} keeps {num_runs} runs of {num_runs + num_left}; the same command with --resume continues it"


def _pass_cost(model: "LoadedModel", threads: int) -> dict[str, Any]:
    from foreword.bench.pass_cost import measure_pass_cost

    widths = (1, 2, 4, 8, 16, 32)
    context = min(256, model.checkpoint.spec.context_len - max(widths))
    cost = measure_pass_cost(model.decoder, widths, context, repeats=20, threads=threads)
    return {
        "widths": {str(n): ms for n, ms in cost.ms_by_width.items()},
        "floor_ms": cost.floor_ms,
        "context": cost.context_len,
        "bandwidth_gb_per_s": cost.bandwidth_gb_per_s,
        "weight_bytes": cost.weight_bytes,
    }
