"""Making a table for the drafter `ngram_lm`: no features and no steps, one count over the model's own answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foreword.draft.lookup.ngram_table import FILE, NgramTable
from foreword.engine.llm import LLM
from foreword.files import write_whole
from foreword.train.data.answers import HELD_OUT, TRAIN, Answer
from foreword.train.data.ngram_counts import count_ngrams
from foreword.train.data.self_distill import Question, opened
from foreword.train.loop.phase_times import Times
from foreword.train.loop.resume_state import Progress
from foreword.train.loop.session import Reporter, collect_answers, verify_and_describe
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.method import Measures
from foreword.train.out.curves import TOKENS, write_curves
from foreword.train.out.simulate import measure_answers

METHOD = "ngram_lm"
ORDER = 4  # tokens of the longest contexts; five name 0.2 % more tokens rightly, in a third more contexts
_DATA_SHARE = 0.95  # of the time budget, until the last answer: counting takes seconds
_DEPTH = 4  # deepest draft token that is measured
_SHARES = (0.125, 0.25, 0.5, 1.0)  # of the answers, for the curve: does it still rise?


def count(
    llm: LLM,
    questions: Sequence[Question],
    out: Path,
    settings: TrainSettings,
    reporter: Reporter,
    *,
    data: Path | None = None,
    licences: Mapping[str, str] | None = None,
    times: Times,
) -> Progress:
    """Have the model answer, count, and leave the table in `out`. See `session.train`; the same command again counts anew."""
    data = data or out / "data"
    others_s = times.spent_s - times.values.get("answers", 0.0)  # loading, and prompts of the model's own
    share = _DATA_SHARE - others_s / settings.time_budget_s
    answers = collect_answers(llm, questions, data, settings, reporter, times, share)
    reporter.phase("counting what follows what")
    checkpoint, start_s, progress = opened(llm), times.clock(), Progress()
    train = [answer for answer in answers if answer.split == TRAIN]
    judged = [a for a in answers if a.split == HELD_OUT and a.temperature == 0.0 and a.answer_len >= 2]
    table, measures = NgramTable.empty(ORDER), measure_answers([], _DEPTH)
    for done, share in enumerate(_SHARES):
        reporter.data(done, len(_SHARES))
        part = train[: max(1, round(share * len(train)))]
        table = count_ngrams(
            [a.token_ids for a in part], [a.prompt_len for a in part], ORDER, checkpoint.spec.vocab_size
        )
        measures = measured(table, judged)
        progress.num_tokens, progress.best = sum(a.answer_len for a in part), measures.tokens_per_step
        progress.curve.append(
            {
                "answer_tokens": progress.num_tokens,
                "accept_by_depth": [round(rate, 4) for rate in measures.accept_by_depth],
                "tokens_per_step_chain": round(measures.tokens_per_step, 4),
            }
        )
    progress.elapsed_s = times.clock() - start_s
    told = {
        "method": METHOD,
        "target": checkpoint.source,
        "target_fingerprint": checkpoint.fingerprint,
        "order": ORDER,
        "contexts": len(table.keys),
        "continuations": len(table.ids),
        "training_s": round(progress.elapsed_s, 1),
        "answer_tokens_seen": progress.num_tokens,
        "accept_by_depth": progress.curve[-1]["accept_by_depth"],
    }
    _save(out, table, told)
    verified = verify_and_describe(
        METHOD, llm, out, settings, licences or {}, questions, answers, measures, told, times
    )
    write_curves(out, progress.curve, TOKENS)
    reporter.best(measures, verified)
    return progress


def measured(table: NgramTable, answers: Sequence[Answer]) -> Measures:
    """Chains of the table's most probable tokens against greedy answers: a guess counts where all before it were right."""
    rows = (
        ([_num_right(table, a.token_ids, place) for place in range(a.prompt_len, len(a.token_ids) - 1)], a.category)
        for a in answers
    )
    return measure_answers(rows, _DEPTH)


def _num_right(table: NgramTable, ids: Sequence[int], place: int) -> int:
    """How many guesses after the token at `place` are the text's own, up to the deepest."""
    for depth in range(min(_DEPTH, len(ids) - 1 - place)):
        at = place + depth + 1
        guesses = table.after(ids[max(0, at - table.order) : at])
        if not guesses or guesses[0][0] != ids[at]:
            return depth
    return min(_DEPTH, len(ids) - 1 - place)


def _save(folder: Path, table: NgramTable, told: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table.save(folder / FILE)
    write_whole(folder / "config.json", json.dumps({"foreword": dict(told)}, indent=2) + "\n")
