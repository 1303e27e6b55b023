"""The model card: what a drafter was made of, how long it took, what it was measured at."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.train.data.answers import Answer
from foreword.train.data.self_distill import Question
from foreword.train.methods.method import Measures


def model_card(
    *,
    method: str,
    model: str,
    licences: Mapping[str, str],
    questions: Sequence[Question],
    answers: Sequence[Answer],
    measures: Measures,
    facts: Mapping[str, Any],
    verified: Mapping[str, Any] | None,
) -> str:
    """Markdown of the card. `licences` by prompt file; `verified` is what the real verifier measured, if it ran."""
    parts = [
        *_title(method, model, measures),
        "",
        "## Data",
        "",
        "The model's own answers to these prompts (sampled at the temperatures given):",
        "",
        *_data_table(questions, answers, licences),
        "",
        f"{sum(a.answer_len for a in answers):,} answer tokens in {len(answers):,} answers; "
        f"{sum(a.split == 'held_out' for a in answers):,} of them held out, by prompt.",
        "",
        "## Training",
        "",
        *[f"- {name.replace('_', ' ')}: {_text(value)}" for name, value in facts.items()],
        "",
        "## Measured",
        "",
        "On held-out prompts, greedy, chains:",
        "",
        "| depth | " + " | ".join(str(d + 1) for d in range(len(measures.accept_by_depth))) + " |",
        "|---|" + "--:|" * len(measures.accept_by_depth),
        "| accepted, where all before were | " + " | ".join(f"{rate:.3f}" for rate in measures.accept_by_depth) + " |",
        "",
        f"{measures.tokens_per_step:.2f} tokens per step with chains of {len(measures.accept_by_depth)} "
        f"({measures.num_places:,} positions). First depth by category:",
        "",
        "| category | accepted |",
        "|---|--:|",
        *[f"| {name} | {share:.3f} |" for name, share in measures.first_depth_by_category.items()],
        "",
        *_verified_lines(verified),
        "![learning curve](curve.svg)",
    ]
    return "\n".join(parts) + "\n"


def _title(method: str, model: str, measures: Measures) -> list[str]:
    """What it is and how it is used; of a tuned target also what the tuning did to it."""
    if not measures.also:
        return [
            f"# {method} drafter for {model}",
            "",
            f"Drafts tokens for `{model}` and for no other model. Trained with `foreword train {method}`; served with",
            f"`--drafter {method}=THIS_FOLDER`. The model's output does not change.",
        ]
    found = measures.also
    return [
        f"# {model}, tuned together with {method} heads",
        "",
        f"**A different model from `{model}`, with output of its own.** Trained with `foreword train {method}`; served with",
        f"`--model THIS_FOLDER --drafter {method}`, which gives the tokens of `--model THIS_FOLDER --drafter none`. Compare its speed",
        "with that, and its output with that of the original.",
        "",
        "| on held-out answers of the original | original | tuned |",
        "|---|--:|--:|",
        f"| perplexity | {found['perplexity_original']:.3f} | {found['perplexity_tuned']:.3f} |",
        "",
        f"That is {found['perplexity_change_percent']:+.2f} %. KL(original, tuned) is {found['divergence_nats']:.4f} nats per token; at "
        f"{found['same_likeliest_token']:.1%} of the tokens both have the same top-1 token. Measured in the training's own "
        "arithmetic, before the weights were written.",
    ]


def _data_table(questions: Sequence[Question], answers: Sequence[Answer], licences: Mapping[str, str]) -> list[str]:
    group_of = {question.id: question.group for question in questions}
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for answer in answers:
        counts[group_of[answer.id]] += 1
        tokens[group_of[answer.id]] += answer.answer_len
    lines = ["| prompts | licence of the prompts | answers | answer tokens |", "|---|---|--:|--:|"]
    for group in sorted(counts):
        lines.append(f"| {group} | {licences.get(group, 'not stated')} | {counts[group]:,} | {tokens[group]:,} |")
    return lines


def _verified_lines(verified: Mapping[str, Any] | None) -> list[str]:
    if verified is None:
        return []
    return [
        f"Measured by the verifier on {verified['num_prompts']} held-out prompts, {verified['runtime']} "
        f"{verified['dtype']}, {verified['drafted_tokens_per_step']:.1f} drafted tokens per step: "
        f"**{verified['tokens_per_step']:.2f} tokens per step**.",
        "",
    ]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
