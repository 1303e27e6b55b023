"""The n-gram drafter: chances by the formula, files, trees, and what it does for `auto`."""

import itertools
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foreword import LLM, SamplingParams
from foreword.bench.methods import method_facts
from foreword.draft.base import Plan
from foreword.draft.draft_config import DraftConfig
from foreword.draft.lookup.ngram_lm import NgramLmDrafter
from foreword.draft.lookup.ngram_table import FILE, NgramTable, context_keys, load_table, next_keys
from foreword.draft.make_drafter import make_drafter
from foreword.errors import CheckpointError, ConfigError, ModelNotFoundError
from foreword.train.data.ngram_counts import count_ngrams
from foreword.tune.candidates import default_candidates
from tests.support.ngram_tables import expected_chances, save_table, table_of_texts
from tests.support.tiny_llm import VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("own_cache")

TEXTS = [[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4], [7, 2, 3, 6, 7, 2, 3, 6, 8]]


def random_texts(rng, num, vocab_size):
    """With more repetition than chance: a walk that mostly goes on as it did last time."""
    texts = []
    for _ in range(num):
        text, after = [rng.randrange(vocab_size)], {}
        for _ in range(rng.randint(1, 60)):
            token = after[text[-1]] if text[-1] in after and rng.random() < 0.7 else rng.randrange(vocab_size)
            after[text[-1]] = token
            text.append(token)
        texts.append(text)
    return texts


@pytest.mark.parametrize("seed", range(6))
def test_chances_are_those_of_the_formula(seed):
    rng = random.Random(seed)
    texts = random_texts(rng, 30, 6)
    prompt_lens = [rng.randint(0, len(text) - 1) for text in texts]
    order = rng.randint(1, 4)
    table = count_ngrams(texts, prompt_lens, order, 6)
    off = 0.04 * order + 0.01  # a context that says nearly the same as the shorter one is left out, and so is that one
    num_known = 0
    for context in itertools.product(range(6), repeat=order):
        wanted = expected_chances(texts, prompt_lens, context)
        found = table.after(context)
        num_known += bool(found)
        assert [chance for _, chance in found] == sorted((chance for _, chance in found), reverse=True)
        for token, chance in found:
            assert chance == pytest.approx(wanted.get(token, 0.0), abs=off)
        best = sorted(wanted.values(), reverse=True)[:4]
        for (_, chance), likely in zip(found, best, strict=False):
            assert chance == pytest.approx(likely, abs=off)
        assert len(found) >= sum(c >= 0.06 + off for c in best)
    assert num_known > 0


def test_only_what_was_said_is_counted_and_no_context_crosses_texts():
    table = count_ngrams([[1, 2, 3], [4, 5, 6]], [2, 1], 2, 10)
    assert table.after([1]) == [], "2 is part of the prompt"
    assert [token for token, _ in table.after([2])] == [3], "a prompt's last token is a context"
    assert [token for token, _ in table.after([4])] == [5]
    assert table.after([3]) == [], "nothing was said after it: another text begins"


def test_the_longest_known_context_answers():
    table = table_of_texts(TEXTS, 10)
    assert table.after([9, 9, 7, 2, 3])[0][0] == 6
    assert table.after([1, 2, 3])[0][0] == 4
    assert table.after([9, 2, 3])[0] == table.after([2, 3])[0] == table.after([0, 0, 0, 2, 3])[0]
    assert table.after([9]) == table.after([]) == []


def test_keys_of_arrays_are_those_of_lists():
    tokens = np.array([5, 70_000, 3, 0])
    keys = np.zeros(1, dtype=np.uint64)
    for expected, token in zip(context_keys(tokens.tolist()), reversed(tokens), strict=True):
        keys = next_keys(keys, np.array([token]))
        assert int(keys[0]) == expected
    assert len(set(context_keys([0, 0, 0, 0]))) == 4, "length counts, even of zeros"


def test_nothing_to_count():
    for texts, prompt_lens in (([], []), ([[1, 2]], [2]), ([[1]], [0]), ([[1, 2, 3]], [3])):
        table = count_ngrams(texts, prompt_lens, 3, 10)
        assert len(table.keys) == len(table.ids) == 0
        assert table.after([1, 2]) == []


@pytest.mark.parametrize("vocab_size", [10, 200_000])
def test_a_file_holds_all_of_it(tmp_path, vocab_size):
    texts = [[token + vocab_size - 10 for token in text] for text in TEXTS]
    table = table_of_texts(texts, vocab_size)
    read = load_table(save_table(tmp_path, table), vocab_size)
    assert read.order == table.order
    for text in texts:
        for end in range(1, len(text)):
            assert read.after(text[:end]) == table.after(text[:end])
    with pytest.raises(CheckpointError, match=rf"names token {vocab_size - 2}; this model's are 0 to {vocab_size - 3}"):
        load_table(tmp_path, vocab_size - 2)


def damaged(folder, **changes):
    table = table_of_texts(TEXTS, 10)
    values = {name: getattr(table, name) for name in ("keys", "counts", "ids", "chances")} | changes
    return save_table(folder, NgramTable(values.pop("order", 3), **values))


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": table_of_texts(TEXTS, 10).keys[::-1].copy()},
        {"ids": table_of_texts(TEXTS, 10).ids[:-1]},
        {"chances": table_of_texts(TEXTS, 10).chances[:-1]},
        {"order": 0},
        {"order": 99},
        {"order": "four"},
        {"order": 3.0},
        {"order": True},
        {"keys": table_of_texts(TEXTS, 10).keys.astype(np.int64)},
        {"ids": table_of_texts(TEXTS, 10).ids.astype(np.float32)},
        {"counts": np.array(3, dtype=np.uint8)},
        {"chances": table_of_texts(TEXTS, 10).chances[None]},
    ],
)
def test_a_damaged_file_is_refused(tmp_path, changes):
    with pytest.raises(CheckpointError, match="is damaged: "):
        load_table(damaged(tmp_path, **changes), 10)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no n-gram table"):
        load_table(tmp_path / "missing", 10)
    folder = damaged(tmp_path / "cut")
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="holds no n-gram table"):
        load_table(folder, 10)
    folder = damaged(tmp_path / "card")
    (folder / "config.json").write_text(json.dumps({"foreword": {"method": "medusa"}}))
    with pytest.raises(CheckpointError, match="is damaged: order None"):
        load_table(folder, 10)


def test_a_path_is_what_it_is_for_other_drafters(model, files, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_table(tmp_path / "mine", table_of_texts(TEXTS, VOCAB_SIZE))
    assert LLM(model, "ngram_lm=~/mine").engine.parts.drafter.name == "ngram_lm"
    with pytest.raises(ModelNotFoundError, match="there is no drafter '.*nowhere'; allowed: a folder with config.json"):
        LLM(model, f"ngram_lm={tmp_path / 'nowhere'}")
    with pytest.raises(ModelNotFoundError, match="there is no drafter"):
        LLM(model, f"ngram_lm={tmp_path / 'mine' / FILE}")
    with pytest.raises(CheckpointError, match=r"has no tensor 'keys', so it is no n-gram table"):
        LLM(model, f"ngram_lm={files.eagle3}")


def view(token_ids):
    return SimpleNamespace(token_ids=token_ids, kv_len=len(token_ids) - 1, prompt_len=1, request_id=0)


def propose(table, token_ids, num_nodes, depth):
    (tree,) = NgramLmDrafter(table).propose([view(token_ids)], [Plan(1, num_nodes, depth, "ngram_lm", "")])
    tree.check()
    return tree


def test_a_tree_grows_by_the_likeliest_node():
    table = table_of_texts(random_texts(random.Random(3), 60, 8), 8)
    num_drafted = 0
    for root in range(8):
        whole = propose(table, [root], 12, 6)
        assert whole.accept_probs is not None
        probs = whole.accept_probs[1:]
        assert list(probs) == sorted(probs, reverse=True), "best first"
        assert min(probs, default=1.0) >= 0.12
        num_drafted += whole.num_drafted
        for num_nodes in range(1, whole.num_drafted):
            small = propose(table, [root], num_nodes, 6)
            assert small.token_ids == whole.token_ids[: num_nodes + 1], "fewer nodes are the best of more"
        flat = propose(table, [root], 12, 1)
        assert set(flat.depths) <= {0, 1}
        assert propose(table, [root], 0, 0).num_drafted == propose(table, [root], 4, 0).num_drafted == 0
    assert num_drafted > 8


def test_a_path_goes_on_with_its_own_tokens():
    tree = propose(table_of_texts([[1, 2, 3, 4, 5] * 8], 10, order=2), [9, 1], 3, 3)
    assert list(tree.token_ids) == [1, 2, 3, 4]
    assert tree.is_chain
    one = propose(table_of_texts([[1, 2, 3, 4, 5] * 8], 10, order=1), [9, 1], 3, 3)
    assert list(one.token_ids) == [1, 2, 3, 4], "a context of one token too"


def on_the_shelf(tmp_path, model):
    """A table of the model's output, where it is looked for."""
    plain = LLM(model, "none")
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    texts = [[i, *plain.generate([[i]], params)[0].token_ids] for i in range(20)]
    table = table_of_texts(texts, VOCAB_SIZE)
    return save_table(tmp_path / "cache/checkpoints/mine", table, target_fingerprint=model.checkpoint.fingerprint)


@pytest.mark.parametrize(
    ("memory", "alone", "name"), [(True, "memory", "memory"), (False, "suffix", "suffix,ngram_lm")]
)
def test_auto_asks_a_table_where_there_is_one(model, tmp_path, memory, alone, name):
    auto = {"method": "auto", "memory": memory}
    params = [SamplingParams(max_tokens=40, ignore_eos=True), SamplingParams(max_tokens=40, temperature=0.9, seed=3)]
    plain = [LLM(model, "none").generate([[3]], p)[0].token_ids for p in params]
    assert LLM(model, auto).engine.parts.drafter.name == alone
    assert method_facts(LLM(model, auto))["weights"] == []
    on_the_shelf(tmp_path, model)
    llm = LLM(model, auto)
    assert llm.engine.parts.drafter.name == name
    facts = method_facts(llm)
    assert (facts["drafter"], facts["weights"]) == ("auto", ["mine"])
    assert "a table" in facts["needs"], "a report says what auto had"
    assert "suffix+ngram_lm" in [c.name for c in default_candidates(model.checkpoint.fingerprint, ())]
    assert llm.config.num_speculative_tokens == 16
    assert [llm.generate([[3]], p)[0].token_ids for p in params] == plain
    drafted = LLM(model, "ngram_lm").generate([[3]], params[0])[0]
    assert drafted.token_ids == plain[0]
    assert drafted.stats.num_steps < 20, "it was counted over this very answer"


def test_auto_does_without_a_damaged_one_and_says_so(model, tmp_path, caplog):
    (on_the_shelf(tmp_path, model) / FILE).write_bytes(b"nothing")
    target = LLM(model, "none").engine.parts.target
    for options, name in (({}, "memory"), ({"memory": False}, "suffix")):
        caplog.clear()
        assert make_drafter(DraftConfig(method="auto", options=options), target).name == name
        assert "drafting without a table" in caplog.text
    with pytest.raises(CheckpointError, match="holds no n-gram table"):
        make_drafter(DraftConfig(method="ngram_lm"), target)


def test_without_a_table_it_says_how_to_make_one(model):
    with pytest.raises(ConfigError, match="foreword train ngram_lm"):
        LLM(model, "ngram_lm")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_a_folder_of_another_drafter_is_no_table(tmp_path, dtype):
    """Also where numpy does not know its dtype."""
    save_file({"fc.weight": torch.zeros(2, 2, dtype=dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no n-gram table"):
        load_table(tmp_path)
