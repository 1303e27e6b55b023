"""The results as a profile and as text."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

from foreword.draft.draft_config import DraftConfig
from foreword.draft.names import parse_method
from foreword.engine.machine_key import machine_key
from foreword.engine.profile_file import Profile, model_facts
from foreword.tune.draft_model_fit import PairFacts
from foreword.tune.measure import Arm
from foreword.tune.search import Outcome, doubt


def profile_of(outcome: Outcome) -> Profile:
    """The winner's, or drafter none."""
    model, winner = outcome.bench.model, outcome.winner
    config = DraftConfig(method="none") if winner is None else winner_config(winner)
    return Profile(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=model_facts(model),
        machine=machine_key(),
        runtime=model.choice.name,
        dtype=model.choice.dtype,
        kv_dtype=model.choice.kv_dtype,
        isa=model.choice.isa or "",
        threads=getattr(model.runtime, "threads", None),
        drafter=config.settings,
        policy="fixed" if winner is None else winner.candidate.policy,
        measured=({} if winner is None else arm_facts(winner)) | {"plain_tok_per_s": plain_tok_per_s(outcome)},
    )


def winner_config(arm: Arm) -> DraftConfig:
    """Its settings, the number of nodes included; files by paths that hold in every folder."""
    config = arm.llm.config
    parts = parse_method(config.method)
    return replace(
        config,
        method=",".join(name if path is None else f"{name}={_absolute(path)}" for name, path in parts),
        path=None if config.path is None else _absolute(config.path),
        num_speculative_tokens=arm.num_nodes,
    )


def _absolute(path: str) -> str:
    """What is no path here, a hub id say, stays."""
    file = Path(path).expanduser()
    return str(file.resolve()) if path and file.exists() else path


def plain_tok_per_s(outcome: Outcome) -> float | None:
    """Plain decoding, over all answers."""
    stats = [r.stats for r in outcome.bench.plain_results]
    seconds = sum(s.decode_s for s in stats)
    return sum(s.new_tokens - 1 for s in stats) / seconds if seconds else None


def arm_facts(arm: Arm) -> dict[str, Any]:
    """For JSON."""
    speed = arm.speed
    return {
        "drafter": arm.candidate.label,
        "speed_up": speed.value,
        "speed_up_95": [speed.low, speed.high] if len(arm.pairs) > 1 else None,
        "tokens_per_step": arm.tokens_per_step,
        "num_pairs": len(arm.pairs),
        "num_answers": len(arm.results),
        "num_near_ties": arm.num_near_ties,
        "fault": arm.fault,
    }


def pair_facts(facts: PairFacts) -> dict[str, Any]:
    """For JSON."""
    best = facts.best
    return {
        "draft": facts.draft,
        "is_same_vocabulary": facts.pairing.is_same_vocabulary,
        "notes": list(facts.pairing.notes),
        "size_ratio": facts.size_ratio,
        "c": facts.c,
        "alpha": facts.alpha,
        "measured_k": facts.k,
        "best_k": None if best is None else best[0],
        "predicted_speed_up": None if best is None else best[1],
    }


def pair_words(facts: PairFacts) -> list[str]:
    """For people."""
    words = [*facts.pairing.notes]
    cost = f"a draft pass takes {facts.c:.2f} of a target pass (c)"
    if facts.alpha is None or facts.best is None:
        return [*words, f"{cost}; nothing was drafted, so its acceptance is not known"]
    k, gain = facts.best
    advice = (
        f"{k} tokens per step are best: {gain:.2f} x predicted" if k else "so no number of tokens per step is faster"
    )
    return [*words, f"{cost}; {facts.alpha:.0%} of its tokens are accepted (alpha); {advice}"]


def answer(outcome: Outcome, profile_path: str | None) -> str:
    """The answer: is speculation faster for this model on this machine?"""
    winner = outcome.winner
    use = f" Use it with --profile {profile_path}." if profile_path is not None else ""
    if winner is not None:
        speed = winner.speed
        return (
            f"Yes: {winner.candidate.label} makes this model {speed.value:.2f} times as fast on this machine{_interval(winner)}, with the "
            f"same tokens in all of {len(winner.results)} answers.{use}"
        )
    best = next((arm for arm in outcome.arms if arm.fault is None and arm.pairs), None)
    if best is None and any(arm.fault is None for arm in outcome.arms):
        return (
            f"Too little to tell: no answer ended in {outcome.seconds:.0f} s that could be compared. Give a longer --time-budget or "
            "fewer --max-tokens. Decode plainly (--drafter none) until then."
        )
    if best is None:
        return "No: no candidate gave the tokens of plain decoding; decode plainly (--drafter none)."
    comes_to = f"{best.candidate.label}, comes to {best.speed.value:.2f} times plain decoding{_interval(best)}"
    too = "; the profile says so too" if use else ""
    cut = "the time was over before the best were timed against each other" if outcome.is_cut else None
    if (reason := cut or doubt(best)) is not None:
        return (
            f"Too little to tell: the best, {comes_to}, but {reason}. Give more prompts (--prompts) or a longer --time-budget, and let "
            f"nothing else run. Decode plainly (--drafter none) until then{too}."
        )
    return (
        f"No: nothing is certainly faster on this machine; the best, {comes_to}. Decode plainly (--drafter none){too}."
    )


def _interval(arm: Arm) -> str:
    """Empty where one pair is all there is."""
    speed = arm.speed
    return f" (95 % interval {speed.low:.2f} to {speed.high:.2f})" if len(arm.pairs) > 1 else ""
