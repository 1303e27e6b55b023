"""Tables for `ngram_lm`: of texts, and what they should say by the formula, term by term."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from foreword.draft.lookup.ngram_table import FILE, NgramTable
from foreword.train.data.ngram_counts import count_ngrams


def table_of_texts(texts: Sequence[Sequence[int]], vocab_size: int, order: int = 3) -> NgramTable:
    """Counted over all tokens but the first of each."""
    return count_ngrams(texts, [1] * len(texts), order, vocab_size)


def save_table(folder: Path, table: NgramTable, **facts) -> Path:
    """A drafter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table.save(folder / FILE)
    card = {"foreword": {"method": "ngram_lm", "order": table.order, **facts}}
    (folder / "config.json").write_text(json.dumps(card))
    return folder


def expected_chances(
    texts: Sequence[Sequence[int]], prompt_lens: Sequence[int], context: Sequence[int], least_seen: int = 2
) -> dict[int, float]:
    """The mixed chances after a context by the formula itself, of its longest end that was seen often enough."""
    chances: dict[int, float] = {}
    for length in range(1, len(context) + 1):
        end = tuple(context[len(context) - length :])
        counts = Counter(
            text[i]
            for text, prompt_len in zip(texts, prompt_lens, strict=True)
            for i in range(max(prompt_len, length), len(text))
            if tuple(text[i - length : i]) == end
        )
        seen = sum(counts.values())
        if seen < (least_seen if length > 1 else 1):
            break
        weight = seen / (seen + 3.0 * len(counts))
        chances = {token: (1 - weight) * chance for token, chance in chances.items()}
        for token, count in counts.items():
            chances[token] = chances.get(token, 0.0) + weight * count / seen
    return chances
