"""What decoding would gain, from how many draft tokens in a row are right at each position of an answer."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from foreword.train.data.batches import Batch
from foreword.train.methods.method import Measures

Chains = list[int]  # of one answer: guesses in a row that are right, drafting from each of its tokens


def measure_batches(
    batches: Iterable[tuple[Batch, list[str | None]]], accepted: Callable[[Batch], Tensor], depth: int
) -> Measures:
    """Measure held-out batches; with each batch its answers' categories.

    `accepted` says for each pair of a batch (B, A - 1) how many draft tokens in a row are the answer's own.
    """
    answers: list[tuple[Chains, str | None]] = []
    with torch.no_grad():
        for batch, categories in batches:
            rows, first = accepted(batch), batch.num_columns - batch.answer_columns
            for i, category in enumerate(categories):
                answers.append((rows[i, int(batch.answer_starts[i]) - first : -1].tolist(), category))
    return measure_answers(answers, depth)


def measure_answers(answers: Iterable[tuple[Chains, str | None]], depth: int) -> Measures:
    """Measure answers with their categories; those without a place to draft from count for nothing."""
    chains: list[Chains] = []
    by_category: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row, category in answers:
        if row:
            chains.append(row)
            by_category[category or "none"][0] += sum(n > 0 for n in row)
            by_category[category or "none"][1] += len(row)
    shares = {name: right / num for name, (right, num) in sorted(by_category.items())}
    return measure(chains, depth, shares)


def in_a_row(said: Tensor, guesses: Iterable[Tensor]) -> Tensor:
    """For each pair, how many draft tokens in a row are the answer's own (B, A - 1).

    Args:
        said: the answers (B, A) in the drafter's ids; below 0 where it has none.
        guesses: of each further step (B, A - 1).
    """
    num_pairs = said.shape[1] - 1
    accepted = torch.zeros(len(said), num_pairs, dtype=torch.int64)
    is_alive = torch.ones(len(said), num_pairs, dtype=torch.bool)
    for step, best in enumerate(guesses):
        is_alive &= best == F.pad(said, (0, step + 1), value=-2)[:, step + 2 :][:, :num_pairs]
        accepted += is_alive
    return accepted


def measure(chains: Sequence[Chains], depth: int, shares: Mapping[str, float]) -> Measures:
    """Acceptance by depth over all places, and tokens per step of chains of `depth`.

    A guess beyond the answer's end cannot be right, so places near it count only to the depth that is left.
    """
    reached, right = [0] * depth, [0] * depth
    for answer in chains:
        for place, accepted in enumerate(answer):
            for d in range(min(depth, len(answer) - place, accepted + 1)):
                reached[d] += 1
                right[d] += accepted > d
    rates = [r / n if n else 0.0 for r, n in zip(right, reached, strict=True)]
    return Measures(rates, tokens_per_step(chains), dict(shares), sum(map(len, chains)))


def tokens_per_step(chains: Sequence[Chains]) -> float:
    """Tokens per step after the first: each step keeps its accepted draft tokens and one token more."""
    num_tokens = num_steps = 0
    for answer in chains:
        place = 0
        while place < len(answer):
            emitted = min(answer[place] + 1, len(answer) - place)
            num_tokens, num_steps, place = num_tokens + emitted, num_steps + 1, place + emitted
    return num_tokens / num_steps if num_steps else 0.0
