"""What goes with what: one table of drafters and rules, the page made of it, and the words that the tests prove.

    python -m tests.support.combos > docs/combinations.md

`tests/equivalence/test_combinations.py` holds every cell to its word and the page to the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword.draft.registry import drafter_types

EXACT, IN_LAW, LOSSY, REFUSED = "exact", "distribution", "lossy", "refused"
EITHER = "chain or tree"
VERIFIERS = ("match", "rejection", "block", "typical")
_WORDS = {"match": EXACT, "rejection": IN_LAW, "block": IN_LAW, "typical": LOSSY}


@dataclass(frozen=True)
class Row:
    """A drafter with its settings. In `config`, a value such as "{draft}" is a path of `support.tiny_llm.TinyFiles`."""

    drafter: str
    shape: str  # of its proposals under match: "chain", "tree", either, or "" where it proposes nothing
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: str = ""  # as the page shows them
    refused: Mapping[str, str] = field(default_factory=dict)  # by rule: the reason, as a pattern
    kind: str = ""  # of a drafter that is none of the library's: a class of support.sampled_drafter

    def word(self, verifier: str) -> str:
        """What must hold of the answers."""
        if verifier == "typical" and not self.shape:
            return EXACT  # nothing to be lenient about; the extra token is the target's own draw
        return REFUSED if verifier in self.refused else _WORDS[verifier]

    @property
    def key(self) -> str:
        """For the names of tests."""
        return "-".join(part for part in (self.drafter, self.shape, self.settings.replace(" ", "")) if part)


def _trained(method: str, path: str, shape: str, width: int) -> Row:
    config: dict[str, Any] = {"method": method, "model": path, "draft_tree_width": width}
    if method != "draft_model":
        config["draft_tree_depth"] = 2
    return Row(method, shape, config, f"draft_tree_width {width}")


_WRITTEN = (
    Row("none", ""),
    Row("ngram", "chain"),
    Row("suffix", "chain", {"suffix_decoding_tree": False}, "suffix_decoding_tree false"),
    Row("suffix", "tree"),
    Row("recycling", "chain", {"recycling_top_k": 1}, "recycling_top_k 1"),
    Row("recycling", "tree"),
    Row("lookahead", "tree"),
    Row("ngram_lm", "tree", {"method": "ngram_lm", "model": "{ngram_lm}"}),
    Row("layerskip", "chain", {"exit_layer": 1}),
    Row("layerskip", "tree", {"exit_layer": 1, "draft_tree_width": 3}, "draft_tree_width 3"),
    Row("synthetic", "", settings="without a reference"),
    _trained("draft_model", "{draft}", "chain", 1),
    _trained("draft_model", "{draft}", "tree", 3),
    Row("draft_model", "chain", {"method": "draft_model", "model": "{other}"}, "another tokenizer"),
    Row(
        "medusa",
        "chain",
        {"method": "medusa", "model": "{medusa_reduced}", "draft_tree_width": 1},
        "draft_tree_width 1",
    ),
    Row("medusa", "tree", {"method": "medusa", "model": "{medusa}"}, refused={"block": "checks chains"}),
    _trained("eagle", "{eagle}", "chain", 1),
    _trained("eagle", "{eagle}", "tree", 3),
    _trained("eagle2", "{eagle}", "chain", 1),
    _trained("eagle2", "{eagle}", "tree", 3),
    _trained("eagle3", "{eagle3}", "chain", 1),
    _trained("eagle3", "{eagle3_reduced}", "tree", 3),
    Row("suffix,draft_model", "tree", {"method": "suffix,draft_model={draft}"}, "the first worthwhile proposal"),
    Row(
        "suffix,recycling,draft_model",
        "tree",
        {"method": "suffix,recycling,draft_model={draft}", "cascade_merge": True},
        "cascade_merge",
    ),
    Row("lookahead,ngram", "tree", {"method": "lookahead,ngram", "cascade_merge": True}, "cascade_merge"),
    Row("auto", "tree"),
    Row(
        "one of your own",
        "tree",
        settings="draws branches at random",
        refused={"block": "checks chains"},
        kind="Branching",
    ),
    Row(
        "one of your own",
        "tree",
        settings="drops nodes for what was drawn",
        refused={"rejection": "reranked, pruned or merged", "block": "reranked, pruned or merged"},
        kind="Reranked",
    ),
)
_NAMES = {name for row in _WRITTEN if not row.kind for name in row.drafter.split(",")}
# A drafter that needs nothing but its name has a row as it comes, without one here.
ROWS = (*_WRITTEN, *(Row(one.name, EITHER) for one in drafter_types() if not one.takes and one.name not in _NAMES))
# What the requests of every cell ask for. Rules other than match are compared at temperature 0, where all are exact.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 4},
    "penalties": {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "grammar": {"temperature": 1.0, "seed": 6},  # and the grammar of the test
}
BATCH_SIZES = (1, 3)

_HEAD = """# Drafters and verifiers

Written by `python -m tests.support.combos > docs/combinations.md` from the table that
`tests/equivalence/test_combinations.py` runs: every cell with a batch of 1 and of 3, {options}, on a
model of two layers in float32. A test compares this page with the table.

| in a cell | the output |
|---|---|
| exact | identical to plain decoding with the same seed, token for token, at any temperature |
| distribution | same distribution as plain decoding, not the same tokens for a seed; at temperature 0 the same tokens |
| lossy | biased towards the draft distribution; at temperature 0 the same tokens |
| refused | none: the request is not started, and the error says why |

## Every pair

| drafter | proposes | settings | {verifiers} |
|---|---|---|{lines}|
"""
_TAIL = """
`block` verifies the most promising path of a tree; `rejection` uses all its branches. For `rejection`
Medusa's heads sample the candidates of each depth without replacement. With `rejection` and `block` a
draft model or an EAGLE network of any width samples its tokens and drafts a chain.

## Everything else

All sampling options, grammars, `n`, log-probabilities, stop strings, streams, policies (`fixed`,
`history`, `adaptive`), prefill chunks and per-request drafting can be combined with every row: none of
them changes a cell above. `tests/equivalence/test_fuzz.py` runs random combinations of them, `make
fuzz` 5,000.

The prefix cache goes with every drafter above under `match`. Draft models copy what another request's draft cache holds; EAGLE and
Medusa heads and `recycling` begin with the positions that are read, which changes how much is accepted, never the tokens. With
another verifier, where drafts influence the tokens, prompts are read whole for `recycling`, `lookahead`, EAGLE and Medusa heads and
cascades of them. A drafter of your own that needs hidden states of every position has prompts read whole with any verifier.
"""


def page() -> str:
    """docs/combinations.md."""
    head = _HEAD.format(
        options=", ".join(OPTIONS), verifiers=" | ".join(f"`{v}`" for v in VERIFIERS), lines="|".join(["---"] * 4)
    )
    lines = []
    for row in ROWS:
        name = row.drafter if row.kind else f"`{row.drafter}`"
        words = " | ".join(row.word(verifier) for verifier in VERIFIERS)
        lines.append(f"| {name} | {row.shape or 'nothing'} | {row.settings} | {words} |")
    return head + "\n".join(lines) + "\n" + _TAIL


if __name__ == "__main__":
    print(page(), end="")
