"""Is a drafter faster on this machine? Held-out prompts with it and without it, in turns, in a few seconds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foreword.draft.draft_config import DraftConfig
from foreword.engine.llm import LLM, LoadedModel
from foreword.errors import ForewordError
from foreword.sampling.params import SamplingParams
from foreword.train.out.live_acceptance import drafted_for

_WARM_UP = SamplingParams(max_tokens=4, ignore_eos=True)


@dataclass(frozen=True)
class Speeds:
    """Decoding, over the same greedy answers."""

    plain_tok_per_s: float
    drafted_tok_per_s: float
    num_prompts: int

    @property
    def ratio(self) -> float:
        """Times as fast with the drafter."""
        return self.drafted_tok_per_s / self.plain_tok_per_s


def measure_speeds(
    model: LoadedModel,
    drafter: str,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Speeds | None:
    """Answer prompts in turns until `limit_s` is over, one at least; None where there is nothing to time."""
    begun_s = clock()
    try:
        model = drafted_for(model, drafter, folder)
        llms = [
            LLM(model, "none", batch_size=1, prefix_cache=False),
            LLM(model, DraftConfig(method=drafter, path=str(folder)), batch_size=1, prefix_cache=False),
        ]
    except ForewordError:
        return None  # the last measurement has said why
    tokens, seconds, num_prompts = [0, 0], [0.0, 0.0], 0
    for prompt in prompts:
        for side, llm in enumerate(llms):
            if num_prompts == 0:
                llm.generate([list(prompt)], _WARM_UP)
            stats = llm.generate([list(prompt)], SamplingParams(max_tokens=max_tokens))[0].stats
            tokens[side] += stats.new_tokens - 1
            seconds[side] += stats.decode_s
        num_prompts += 1
        if clock() - begun_s > limit_s:
            break
    if not all(tokens) or not all(seconds):
        return None
    return Speeds(tokens[0] / seconds[0], tokens[1] / seconds[1], num_prompts)
