"""`foreword train`: a drafter for a model, made of the model's own answers to prompts."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import note
from foreword.cli.prompt_file import PromptLine, read_prompts
from foreword.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from foreword.engine.llm import LLM
    from foreword.train.data.self_distill import Question
    from foreword.train.loop.session import Reporter

# Written out, since the registry imports torch and --help must not; a test holds it to the registry.
METHOD_NAMES = ("eagle3", "eagle", "medusa", "draft_model", "medusa2", "ngram_lm")
_DATA, _TRAIN = "Data", "Training"
_SOME_PROMPTS = 5000  # of its own: an answer of 200 tokens to each is a million tokens
_LONGEST_LOOK_S = 8.0  # at the speed, after the training


def train(
    method: Annotated[str, typer.Argument(help=f"Which drafter: {', '.join(METHOD_NAMES)}.")],
    out: Annotated[Path, typer.Option(help="Folder for the drafter and for going on after a break.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.jsonl", help="Prompts to train on, as for generate; repeatable.", rich_help_panel=_DATA
        ),
    ] = None,
    own_prompts: Annotated[
        int,
        typer.Option(help="Prompts that the model writes itself, beside the files or alone.", rich_help_panel=_DATA),
    ] = 0,
    model: opt.Model = None,
    time_budget: Annotated[
        str, typer.Option(help="For everything, data included: 90s, 30m, 2h, 1h30m.", rich_help_panel=_TRAIN)
    ] = "2h",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for answers and features; runs may share it. Default: in --out.", rich_help_panel=_DATA
        ),
    ] = None,
    num_tokens: Annotated[
        int, typer.Option(help="Answer tokens to train on; fewer where time runs out.", rich_help_panel=_DATA)
    ] = 1_000_000,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", rich_help_panel=_DATA)] = 256,
    licence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="Licence of a prompts file, for the model card; repeatable.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    draft_vocab_size: Annotated[
        int, typer.Option(help="Most frequent tokens that are drafted.", rich_help_panel=_TRAIN)
    ] = 8000,
    unroll: Annotated[int, typer.Option(help="eagle3: training-time-test steps.", rich_help_panel=_TRAIN)] = 4,
    num_heads: Annotated[
        int, typer.Option(help="medusa, medusa2: number of heads, the deepest draft.", rich_help_panel=_TRAIN)
    ] = 4,
    head_layers: Annotated[
        int, typer.Option(help="medusa, medusa2: residual layers per head.", rich_help_panel=_TRAIN)
    ] = 1,
    share_output: Annotated[
        bool,
        typer.Option(help="medusa, medusa2: one output matrix for all heads, or one each.", rich_help_panel=_TRAIN),
    ] = True,
    soft_targets: Annotated[
        float,
        typer.Option(
            help="medusa, draft_model: weight of the model's distribution beside its choice.", rich_help_panel=_TRAIN
        ),
    ] = 0.5,
    num_layers: Annotated[
        int, typer.Option(help="draft_model: layers, begun as the model's first ones.", rich_help_panel=_TRAIN)
    ] = 3,
    token_weight: Annotated[
        float, typer.Option(help="eagle: weight of tokens beside that of features.", rich_help_panel=_TRAIN)
    ] = 0.1,
    lora_rank: Annotated[
        int, typer.Option(help="medusa2: rank of the adapters that tune the model.", rich_help_panel=_TRAIN)
    ] = 32,
    heads_weight: Annotated[
        float,
        typer.Option(
            help="medusa2: weight of the heads' loss relative to the KL term.",
            rich_help_panel=_TRAIN,
        ),
    ] = 0.01,
    batch_tokens: Annotated[int, typer.Option(help="Answer tokens a training step.", rich_help_panel=_TRAIN)] = 512,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.", rich_help_panel=_TRAIN)] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of data, order and first weights.", rich_help_panel=_TRAIN)] = 0,
    eval_every: Annotated[
        str, typer.Option(help="Time between measurements on held-out prompts.", rich_help_panel=_TRAIN)
    ] = "5m",
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    threads: opt.Threads = None,
    batch_size: Annotated[int, typer.Option(help="Prompts per batch while answering.", rich_help_panel=_DATA)] = 48,
) -> None:
    """Train a drafter for a model on the model's own answers. Run it again to resume."""
    begun_s = time.monotonic()
    if method not in METHOD_NAMES:
        raise UnknownNameError("method", method, METHOD_NAMES)
    _check_folders(out, data)
    lines = _prompt_lines(prompts or [], own_prompts)
    num_given = len({_id_of(path, line) for path, line in lines})
    budget_s, eval_s = opt.parse_duration("--time-budget", time_budget), opt.parse_duration("--eval-every", eval_every)
    licences = _licences(licence or [])

    import torch

    from foreword.engine.llm import LLM
    from foreword.train.loop.settings import TrainSettings

    settings = TrainSettings(
        time_budget_s=budget_s,
        num_tokens=num_tokens,
        max_new_tokens=max_new_tokens,
        draft_vocab_size=draft_vocab_size,
        unroll=unroll,
        num_heads=num_heads,
        head_layers=head_layers,
        share_output=share_output,
        soft_targets=soft_targets,
        num_layers=num_layers,
        token_weight=token_weight,
        lora_rank=lora_rank,
        heads_weight=heads_weight,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        seed=seed,
        eval_every_s=eval_s,
    )
    if threads is not None:
        torch.set_num_threads(threads)
    llm = LLM(
        model,
        "none",
        batch_size=batch_size,
        runtime=runtime,
        dtype=dtype,
        threads=threads,
        show_progress=sys.stderr.isatty(),
    )

    from foreword.cli.render.train_report import kept_text, reporting, result_text, use_text
    from foreword.train.loop.session import live_tokens
    from foreword.train.loop.session import train as run

    try:
        with reporting() as reporter:
            if own_prompts:
                most_s, least = _own_share(method) * budget_s, min(max(0, 2 - num_given), own_prompts)
                lines += _own_lines(llm, own_prompts, data or out / "data", seed, reporter, most_s, least)
            questions = _questions(llm, lines)
            progress = run(
                method, llm, questions, out, settings, reporter, data=data, licences=licences, begun_s=begun_s
            )
    except KeyboardInterrupt:
        note(kept_text(out, data))
        raise
    note(result_text(progress, use_text(method, out)))
    _look_at_speed(llm, method, out, data, live_tokens(settings), begun_s + budget_s - time.monotonic())


def _check_folders(out: Path, data: Path | None) -> None:
    if out.is_file():
        raise ConfigError(f"--out is the file {out}; allowed: a folder, new or of an earlier run")
    for option, folder in {"--out": out, "--data": data}.items():
        if folder is not None:
            check_can_write(option, folder)


def _prompt_lines(prompts: list[Path], own_prompts: int) -> list[tuple[Path, PromptLine]]:
    """What is in the files; `ConfigError` where that and the model's own are too few, whatever the model writes."""
    if own_prompts < 0 or not (prompts or own_prompts):
        raise ConfigError(
            f"--own-prompts is {own_prompts}, with {len(prompts)} files of --prompts; allowed: 0 or above, above 0 without files: "
            f"let the model write some, such as --own-prompts {_SOME_PROMPTS}"
        )
    lines = [(path, line) for path in prompts for line in read_prompts(path)]
    num_given = len({_id_of(path, line) for path, line in lines})
    if num_given + own_prompts < 2:
        raise ConfigError(
            f"there is 1 prompt ({num_given} in --prompts, {own_prompts} in --own-prompts); 2 are needed, one to train on and one to "
            f"measure on, and hundreds to learn much"
        )
    return lines


def _look_at_speed(llm: "LLM", method: str, out: Path, data: Path | None, max_tokens: int, left_s: float) -> None:
    """Say whether the drafter is faster here, in what is left of the time budget."""
    from foreword.cli.render.train_report import drafter_text, speeds_text
    from foreword.train.data.answers import AnswerStore
    from foreword.train.loop.session import live_prompts
    from foreword.train.out.live_speed import measure_speeds

    if left_s <= 0:
        note(f"no time is left to see how fast it is; ask 'foreword tune --drafters auto,{drafter_text(method, out)}'")
        return
    prompts_ids = live_prompts(AnswerStore(data or out / "data").read())
    speeds = measure_speeds(llm.model, method, out, prompts_ids, max_tokens, min(left_s, _LONGEST_LOOK_S))
    if speeds is not None:
        note(speeds_text(speeds, drafter_text(method, out)))


def check_can_write(option: str, folder: Path) -> None:
    """`ConfigError` where the folder cannot be made or written; found out by trying, and nothing of the try stays."""
    made: list[Path] = []
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option} is {folder}, which cannot be made or written ({error.strerror or error}); name a folder that can"
        ) from error
    finally:
        for place in made:
            with suppress(OSError):
                place.rmdir()


def _licences(options: list[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    for option, (name, _, text) in zip(options, pairs, strict=True):
        if not name or not text:
            raise ConfigError(f"--licence is {option!r}; allowed: NAME=TEXT, the name of a prompts file without .jsonl")
    return {"own_prompts": "written by the model itself"} | {name: text for name, _, text in pairs}


def _own_share(method: str) -> float:
    """Most of the budget that writing prompts may take: a quarter of what their answers may."""
    return 0.2 if method == "ngram_lm" else 0.1


def _own_lines(llm: "LLM", num: int, data: Path, seed: int, reporter: "Reporter", most_s: float, least: int) -> list:
    """The prompts of the model's own, written once: those that were answered stay as they are."""
    from foreword.train.data.answers import AnswerStore
    from foreword.train.data.self_prompts import NAME, write_own_prompts

    path = data / f"{NAME}.jsonl"
    if AnswerStore(data).has_begun:
        if not path.is_file():
            raise ConfigError(
                f"the answers in {data} were made without prompts of the model's own; go on without --own-prompts, or give "
                f"another --data or --out"
            )
        return [(path, line) for line in read_prompts(path, num)]
    reporter.phase("the model writes prompts", most_s, "prompts")
    write_own_prompts(llm, path, num, seed, reporter.data, time.monotonic() + most_s, least=least)
    return [(path, line) for line in read_prompts(path, num)]


def _id_of(path: Path, line: PromptLine) -> str:
    """What a prompt is called in the answers; lines without a name by their number."""
    return line.id if isinstance(line.id, str) else f"{path.stem}/{line.id}"


def _questions(llm: "LLM", lines: list) -> "list[Question]":
    """The prompts as tokens; those too long to leave room for an answer are left out and counted."""
    from foreword.cli.conversation import Conversation
    from foreword.errors import PromptTooLongError
    from foreword.train.data.self_distill import Question

    questions, num_long = [], 0
    for path, line in lines:
        try:
            prompt_ids = Conversation.begin(llm, line).prompt_ids
        except ConfigError as error:
            if not isinstance(error.__cause__, PromptTooLongError):
                raise
            num_long += 1
            continue
        questions.append(Question(_id_of(path, line), line.category, path.stem, tuple(prompt_ids)))
    if num_long:
        are = (
            "prompt is longer than the model's context and was"
            if num_long == 1
            else "prompts are longer than the model's context and were"
        )
        note(f"{num_long} {are} left out")
    return questions
