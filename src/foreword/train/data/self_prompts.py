"""Self-generated prompts: what the model expects its user to say, sampled after the user's tag [magpie24].

A drafter is as good as its training texts are like those it serves. Where prompts of all kinds are not at hand, the model
writes them: it was tuned on such. Left alone it asks for advice most of the time, so it is given the first words of every
second prompt. The file is one of prompts like any other, a line a draw that was worth keeping:

    {"id": "own_prompts/17", "turns": ["Can you explain ..."]}

It only grows: ids number the draws, so whoever is killed goes on behind the last whole line. The draws end in any order and are
written in theirs, but for the last ones where time is up.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.files import whole_lines
from foreword.sampling.params import SamplingParams
from foreword.train.data.self_distill import seed_of

NAME = "own_prompts"  # of the prompts and of their file
_MARK = "FOREWORD"  # stands for what the user says
_MOST_TOKENS = 512
_LEAST_CHARS = 12
_CHUNK = 1024  # draws asked in one call
# Kinds of work that draws without a beginning hardly ever ask for: on a text, in few words, step by step.
BEGINNINGS = (
    "Summarize the following article in two or three sentences:",
    "What",
    "Translate the following text into English:",
    "Read this passage and answer the question below.\n\nPassage:",
    "Solve this problem step by step:",
    "Who",
    "Rewrite the following paragraph:",
    "Write a short story about",
    "Here is what I found on the web:",
    "When",
    "Extract all names, places and dates from the following text:",
    "Imagine that you are",
    "Write a function that",
    "Where",
    "Write a letter to",
    "Explain",
)
_POOR_AFTER, _POOR = 2 * _CHUNK, 0.02  # fewer to keep than this, after so many draws: a model that writes no prompts


def write_own_prompts(
    llm: LLM,
    path: Path,
    num: int,
    seed: int,
    progress: Callable[[int, int], None],
    deadline_s: float = math.inf,
    *,
    least: int = 2,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Have the model write until the file holds `num` prompts; how many it holds.

    Past `deadline_s` (of `clock`) it stops earlier, but not before there are `least`.

    Raises:
        ConfigError: the model has no chat template, or writes nothing that could be a prompt.
    """
    prefix_ids, end = user_turn(llm)
    written, draw = _written(path)
    begun_with, first = len(written), draw
    path.parent.mkdir(parents=True, exist_ok=True)
    progress(len(written), num)
    with path.open("a", encoding="utf-8") as file:

        def keep(draw: int, text: str | None) -> None:
            if text is not None and text not in written and len(written) < num:
                written[text] = draw
                file.write(json.dumps({"id": _id(draw), "turns": [text]}, ensure_ascii=False) + "\n")

        def is_over(*ended: int) -> bool:
            return len(written) >= num or (clock() >= deadline_s and len({*written.values(), *ended}) >= least)

        while not is_over():
            ended: dict[int, str | None] = {}  # before draws that have not
            for place, text in _texts(llm, prefix_ids, end, seed, draw):
                ended[place] = text
                while draw in ended:
                    keep(draw, ended.pop(draw))
                    draw += 1
                held = [place for place, text in ended.items() if text is not None]
                progress(min(len(written) + len(held), num), num)
                if is_over(*held):
                    break
            for place in sorted(ended):  # it is late: the draws between them are left out
                keep(place, ended[place])
            if draw - first >= _POOR_AFTER and len(written) - begun_with < _POOR * (draw - first):
                raise ConfigError(
                    f"of {draw - first} texts the model wrote in its user's place only {len(written) - begun_with} could be "
                    f"prompts; give prompts as files (--prompts) instead"
                )
    return len(written)


def _id(draw: int) -> str:
    return f"{NAME}/{draw}"


def user_turn(llm: LLM) -> tuple[list[int], dict[str, Any]]:
    """The tokens before what a user says, and what ends it: as sampling options, a special token or a text."""
    text = llm.tokenizer.render_chat([{"role": "user", "content": _MARK}], add_generation_prompt=False)
    before, found, after = text.rpartition(_MARK)
    prefix_ids = llm.tokenizer.encode(before, add_special_tokens=False)
    if not found or not prefix_ids:
        raise ConfigError("the model's chat template puts nothing before the user's message; give prompts as files")
    first_ids = llm.tokenizer.encode(after.lstrip(), add_special_tokens=False)[:1]
    if first_ids and first_ids[0] in llm.tokenizer.special_ids:
        return prefix_ids, {"stop_token_ids": tuple(first_ids)}
    return prefix_ids, {"stop": (after.strip(),)} if after.strip() else {}


def beginning(draw: int) -> str:
    """The first words of a draw's prompt, which the model goes on from; every second has none."""
    return BEGINNINGS[draw // 2 % len(BEGINNINGS)] if draw % 2 else ""


def _texts(
    llm: LLM, prefix_ids: list[int], end: Mapping[str, Any], seed: int, first: int
) -> Iterator[tuple[int, str | None]]:
    """What the draws from `first` on say, each as soon as it ends; None for one that did not end or says next to nothing."""
    draws = range(first, first + _CHUNK)
    given_ids = [prefix_ids + llm.tokenizer.encode(beginning(draw), add_special_tokens=False) for draw in draws]
    params = [
        SamplingParams(
            temperature=1.0,
            top_p=0.95,
            seed=seed_of(seed, NAME, draw),
            max_tokens=_MOST_TOKENS,
            **end,
        )
        for draw in draws
    ]
    for place, result in llm.as_completed(given_ids, params):
        words = beginning(draws[place])
        is_said = result.finish_reason == "stop" and len(result.text.strip()) >= _LEAST_CHARS
        text = (words + _gap(llm, words, result.token_ids) + result.text).strip() if is_said else None
        yield draws[place], text


def _gap(llm: LLM, words: str, token_ids: Sequence[int]) -> str:
    """The space after the given words where decoding what follows them alone loses it, as tokenizers of SentencePiece do."""
    if not words:
        return ""
    decode = llm.tokenizer.decode
    joined = decode([*llm.tokenizer.encode(words, add_special_tokens=False), *token_ids])
    is_lost = joined.startswith(f"{words} ") and not decode(token_ids).startswith(" ")
    return " " if is_lost else ""


def _written(path: Path) -> tuple[dict[str, int], int]:
    """The prompts of an earlier run with their draws, and the draw to go on with. A kill's half line is cut off."""
    if not path.is_file():
        return {}, 0
    try:
        lines = [json.loads(line) for line in whole_lines(path)]
        written = {line["turns"][0]: int(line["id"].rpartition("/")[2]) for line in lines}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} has lines that the model did not write ({error!r}); take it away, or use it as a file of --prompts"
        ) from error
    return written, max(written.values(), default=-1) + 1
