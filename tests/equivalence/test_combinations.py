"""Drafter x rule x batch x options on a two-layer float32 model: every cell of docs/combinations.md keeps its word."""

from pathlib import Path

import pytest

from foreword.draft.registry import BUILT_IN
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.verify.base import VERIFIERS, make_verifier
from tests.support import combos, sampled_drafter
from tests.support.combos import BATCH_SIZES, EXACT, IN_LAW, LOSSY, OPTIONS, REFUSED, ROWS
from tests.support.pairwise import pairwise
from tests.support.toy_decoder import ToyDecoder

pytestmark = pytest.mark.usefixtures("without_shape_checks")
NUM_TOKENS = {EXACT: 9, IN_LAW: 6}  # of an answer: few, there are many cells
PROMPTS = {"greedy": "abc bad abc bad abc", "sampled": "face 01", "penalties": "cab cab cab cab", "grammar": "{"}
GRAMMAR = Grammar.regex("(ab|ba|cd){3,}e?")
KEYS = {row.key: row for row in ROWS}
CELLS = pairwise(KEYS, combos.VERIFIERS, BATCH_SIZES)


@pytest.fixture(scope="module")
def plain(model):
    """Answers of plain decoding, one request at a time: with the options as they are, and at temperature 0."""
    llm = LLM(model, "none", batch_size=1)
    return {word: tokens(llm, word) for word in (EXACT, IN_LAW)}


def tokens(llm: LLM, word: str, num_tokens: int | None = None) -> list[list[int]]:
    """Answers with the options as they are (exact), or at temperature 0, where sampled is greedy and left out."""
    names = [name for name in OPTIONS if word == EXACT or name != "sampled"]
    prompts = [PROMPTS[name] for name in names]
    return [result.token_ids for result in llm.generate(prompts, params(names, word, num_tokens))]


def params(names: list[str], word: str, num_tokens: int | None) -> list[SamplingParams]:
    word = EXACT if word == EXACT else IN_LAW
    num_tokens = num_tokens or NUM_TOKENS[word]
    made = []
    for name in names:
        options = OPTIONS[name]
        grammar = GRAMMAR if name == "grammar" else None
        greedy = {} if word == EXACT else {"temperature": 0.0}
        made.append(
            SamplingParams(max_tokens=num_tokens, grammar=grammar, ignore_eos=grammar is None, **{**options, **greedy})
        )
    return made


def drafter_of(row: combos.Row, files) -> dict:
    config = {"method": row.drafter, **({} if row.drafter == "none" else {"num_speculative_tokens": 4}), **row.config}
    return {key: value.format(**vars(files)) if isinstance(value, str) else value for key, value in config.items()}


def own_drafter(kind: str, model, draft_mode: DraftMode) -> object:
    target = ToyDecoder(model.checkpoint.spec.vocab_size)
    size = model.checkpoint.spec.vocab_size
    return getattr(sampled_drafter, kind)(sampled_drafter.BlurredModel(target, 0.6), (2, 1), draft_mode, size)


class Shapes:
    """Counts what was proposed."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.drafted, self.branched = llm, 0, 0
        self.inner = llm.engine.parts.drafter.propose
        llm.engine.parts.drafter.propose = self.propose  # type: ignore[method-assign]

    def propose(self, requests, plans):
        trees = self.inner(requests, plans)
        self.drafted += sum(tree.num_drafted for tree in trees)
        self.branched += sum(not tree.is_chain for tree in trees)
        return trees


@pytest.mark.parametrize(("key", "verifier", "batch_size"), CELLS)
def test_a_cell_keeps_its_word(key, verifier, batch_size, files, model, plain, monkeypatch):
    pytest.importorskip("llguidance")
    row = KEYS[key]
    drafter, word = drafter_of(row, files), row.word(verifier)
    if row.kind:
        drafter["method"] = "ngram"
        mode = make_verifier(verifier).draft_mode
        monkeypatch.setattr("foreword.engine.setup.make_drafter", lambda *_: own_drafter(row.kind, model, mode))
    if word == REFUSED:
        with pytest.raises(ConfigError, match=f"do not go together: .*{row.refused[verifier]}"):
            LLM(model, drafter, verifier=verifier, policy="fixed")
        return
    llm = LLM(model, drafter, verifier=verifier, batch_size=batch_size, policy="fixed")
    shapes = Shapes(llm)
    assert tokens(llm, word) == plain[EXACT if word == EXACT else IN_LAW]
    assert (shapes.drafted > 0) == bool(row.shape)
    if word == EXACT and row.shape in ("chain", "tree"):
        assert (shapes.branched > 0) == (row.shape == "tree")
    assert make_verifier(verifier).is_lossless or word in (EXACT, LOSSY)
    if word in (IN_LAW, LOSSY) and batch_size > 1:  # drawn at random too: every answer comes, and a grammar holds
        drawn = tokens(llm, EXACT, NUM_TOKENS[IN_LAW])
        assert [len(ids) for ids in drawn[:3]] == [NUM_TOKENS[IN_LAW]] * 3
        text = llm.tokenizer.decode(drawn[3])
        assert set(text) <= set("abcde")


@pytest.mark.parametrize("verifier", ["rejection", "block", "typical"])
def test_words_are_not_too_modest(verifier, files, model, plain):
    """Drawn at random, the tokens of these rules are not those of plain decoding: "exact" would be wrong."""
    llm = LLM(model, {"method": "draft_model", "model": str(files.draft)}, verifier=verifier)
    assert tokens(llm, EXACT) != plain[EXACT]


def test_options_differ_and_the_table_is_whole(plain):
    assert len({tuple(ids) for ids in plain[EXACT] + plain[IN_LAW]}) >= 5
    assert set(combos.VERIFIERS) == set(VERIFIERS)
    named = {name for row in ROWS if not row.kind for name in row.drafter.split(",")}
    assert named == set(BUILT_IN) - {"medusa2"}  # medusa's drafter, beside another target: test_medusa2.py


def test_the_page_is_the_table():
    path = Path(__file__).parents[2] / "docs" / "combinations.md"
    assert path.read_text() == combos.page(), "run python -m tests.support.combos > docs/combinations.md"
