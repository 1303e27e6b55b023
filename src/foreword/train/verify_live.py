"""Tokens a step as the real verifier gives them: the drafter's folder, served beside the same target."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foreword.engine.llm import LLM, LoadedModel
from foreword.errors import ForewordError
from foreword.sampling.params import SamplingParams

logger = logging.getLogger(__name__)


def verified_tokens_per_step(
    model: LoadedModel, drafter: str, folder: Path, prompts: Sequence[Sequence[int]], max_tokens: int
) -> dict[str, Any] | None:
    """Greedy answers to some prompts, drafted from `folder`; None where this drafter cannot be served here."""
    try:
        llm = LLM(model, f"{drafter}={folder}", batch_size=8)
        results = llm.generate(list(prompts), SamplingParams(max_tokens=max_tokens))
    except ForewordError as error:
        logger.warning("tokens a step were not measured: %s", error)
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
