"""An export, read back: it drafts here as what it was made from does.

Engines load a drafter with wrong layer ids or without its token map in silence, and then accept next to nothing of it.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from foreword.engine.llm import LLM
from foreword.errors import CheckpointError
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel

_TEXTS = (
    "The capital of France is",
    "To sort a list of numbers in Python, first",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at a hundred degrees, and",
)
_NUM_TOKENS, _DEPTH = 48, 3
LEAST_SHARE = 0.85  # of the acceptance before, where the engine's layout changes what is proposed


@dataclass(frozen=True)
class Guesses:
    """What a drafter proposed over the texts, and what of it was accepted."""

    drafted: int
    accepted: int
    accepted_at_depth: tuple[int, ...]

    @property
    def share(self) -> float:
        """Accepted tokens of a proposed one."""
        return self.accepted / self.drafted if self.drafted else 0.0


def guesses(model: LoadedModel, method: str, path: Path) -> Guesses:
    """Drafting in chains for a few texts."""
    drafter = {"method": method, "model": str(path), "num_speculative_tokens": _DEPTH}
    if method in ("eagle", "eagle3"):
        drafter |= {"draft_tree_width": 1, "draft_tree_depth": _DEPTH}  # else the card's own
    with LLM(model, drafter, policy="fixed") as llm:
        results = llm.generate(list(_TEXTS), SamplingParams(max_tokens=_NUM_TOKENS, ignore_eos=True))
    depths = [result.stats.accepted_at_depth for result in results]
    by_depth = tuple(sum(own[depth] for own in depths if depth < len(own)) for depth in range(_DEPTH))
    drafted = sum(result.stats.drafted_tokens for result in results)
    return Guesses(drafted, sum(result.stats.accepted_tokens for result in results), by_depth)


def check_export(model: LoadedModel, source: DrafterSource, layout: Layout, written: Path) -> tuple[Guesses, Guesses]:
    """Guesses before and after. `CheckpointError` where what was written drafts worse than its layout explains."""
    before, after = guesses(model, layout.method, source.path), guesses(model, layout.method, written)
    if layout.same_guesses and before != after:
        raise CheckpointError(
            f"what was written proposes other tokens than {source.path}: {after.accepted} of {after.drafted} accepted, "
            f"{before.accepted} of {before.drafted} before; this is a fault of the export"
        )
    least = LEAST_SHARE * before.share * after.drafted
    if after.accepted < least - 2 * math.sqrt(least):  # less than chance explains
        raise CheckpointError(
            f"of what was written {after.share:.0%} of the proposed tokens are accepted, of {source.path} {before.share:.0%}; "
            f"the engine would load it and gain nothing"
        )
    return before, after
