"""What `foreword tune` prints."""

from pathlib import Path
from typing import Any

from rich.table import Table

from foreword.cli.output import console
from foreword.engine.profile_file import Profile
from foreword.tune.measure import Arm
from foreword.tune.recommendation import answer, arm_facts, pair_facts, pair_words, plain_tok_per_s
from foreword.tune.search import Outcome


def as_json(outcome: Outcome, profile: Profile, out: Path) -> dict[str, Any]:
    """All that was found."""
    return {
        "profile": str(out),
        "model": dict(profile.model),
        "runtime": profile.runtime,
        "dtype": profile.dtype,
        "threads": profile.threads,
        "plain_tok_per_s": plain_tok_per_s(outcome),
        "winner": None if outcome.winner is None else arm_facts(outcome.winner),
        "drafter": dict(profile.drafter),
        "policy": profile.policy,
        "candidates": [arm_facts(arm) for arm in outcome.arms],
        "refused": outcome.refused,
        "pairs": {name: pair_facts(facts) for name, facts in outcome.pairs.items()},
        "seconds": outcome.seconds,
        "answer": answer(outcome, str(out)),
    }


def print_report(outcome: Outcome, out: Path) -> None:
    """A table, what is known of draft models, and the answer as the last line."""
    plain = plain_tok_per_s(outcome)
    speed = "" if plain is None else f"; plain decoding: {plain:.0f} tokens/s"
    table = Table(title=f"Times as fast as plain decoding{speed}")
    table.add_column("drafter")
    for column in ("times", "95 %", "tokens per step", "answers", "same tokens"):
        table.add_column(column, justify="right")
    for arm in outcome.arms:
        table.add_row(*_row(arm))
    screen = console()
    screen.print(table)
    for name, reason in outcome.refused.items():
        screen.print(f"{name} was left out: {reason}")
    for name, facts in outcome.pairs.items():
        screen.print(f"{name}:")
        for line in pair_words(facts):
            screen.print(f"  {line}")
    screen.print(answer(outcome, str(out)))


def _row(arm: Arm) -> list[str]:
    speed, per_step = arm.speed, arm.tokens_per_step
    interval = f"{speed.low:.2f} to {speed.high:.2f}" if len(arm.pairs) > 1 else "-"
    same = "NO" if arm.fault else "yes" if not arm.num_near_ties else f"yes, {arm.num_near_ties} near-ties"
    value = f"{speed.value:.2f}" if arm.pairs else "-"
    tokens = "-" if per_step is None else f"{per_step:.2f}"
    return [arm.candidate.label, value, interval, tokens, str(len(arm.results)), same]
