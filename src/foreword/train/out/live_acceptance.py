"""Tokens per step as the real verifier gives them: the drafter's folder, served beside the same target."""

import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foreword.draft.draft_config import DraftConfig
from foreword.draft.heads.medusa2 import METHOD as TUNED
from foreword.engine.llm import LLM, LoadedModel
from foreword.errors import ForewordError
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import load_model

logger = logging.getLogger(__name__)

_TOGETHER = 4  # prompts side by side


def verified_tokens_per_step(
    model: LoadedModel,
    drafter: str,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    limit_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """Greedy answers to some prompts, drafted from `folder`; None where this drafter cannot be served here.

    After `limit_s` no more are begun. Those that were begun together are all waited for: the first to end are not a fair sample.
    """
    deadline_s = clock() + limit_s
    try:
        llm = LLM(
            drafted_for(model, drafter, folder),
            DraftConfig(method=drafter, path=str(folder)),
            batch_size=_TOGETHER,
            prefix_cache=False,
        )
        results = []
        for start in range(0, len(prompts), _TOGETHER):
            part = [list(prompt) for prompt in prompts[start : start + _TOGETHER]]
            results += llm.generate(part, SamplingParams(max_tokens=max_tokens))
            if clock() > deadline_s:
                break
    except ForewordError as error:
        logger.warning("tokens per step were not measured: %s", error)
        return None
    steps = sum(result.stats.num_steps for result in results)
    tokens = sum(result.stats.new_tokens - 1 for result in results)
    return {
        "tokens_per_step": tokens / max(1, steps),
        "num_prompts": len(results),
        "runtime": model.choice.name,
        "dtype": model.choice.dtype,
        "drafted_tokens_per_step": sum(result.stats.drafted_tokens for result in results) / max(1, steps),
    }


def drafted_for(model: LoadedModel, drafter: str, folder: Path) -> LoadedModel:
    """What a drafter drafts for: the model, or the one that was tuned with it and lies in the same folder.

    A tuned model is run as the other is. What its runtime keeps of it on disk is of use until the next one is tuned: it
    stays out of the user's cache.
    """
    if drafter != TUNED:
        return model
    cache, choice = folder / "resume" / "served", model.choice
    shutil.rmtree(cache, ignore_errors=True)
    return load_model(
        folder,
        runtime=choice.name,
        dtype=choice.dtype,
        device=choice.device,
        kv_dtype=choice.kv_dtype,
        threads=getattr(model.runtime, "threads", None),
        cache_dir=cache,
    )
