"""foreword's drafters behind vLLM's `custom_class` hook, called as vLLM's runner calls it; no vLLM here."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from foreword.draft.base import Plan
from foreword.draft.lookup.ngram_lm import NgramLmDrafter
from foreword.draft.lookup.suffix import SuffixDrafter, SuffixOptions
from foreword.errors import ConfigError
from foreword.integrations.vllm import Proposer, RowStates, best_chain, checked_config
from foreword.tree.draft_tree import DraftTree
from tests.support.ngram_tables import save_table, table_of_texts

VOCAB, MAX_LEN, K = 12, 64, 3


def vllm_config(settings=None, max_num_seqs=4):
    return SimpleNamespace(
        additional_config={} if settings is None else {"foreword": settings},
        speculative_config=SimpleNamespace(num_speculative_tokens=K),
        model_config=SimpleNamespace(max_model_len=MAX_LEN, get_vocab_size=lambda: VOCAB),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
    )


def propose(proposer, rows):
    """One step. Rows are (text with this step's tokens, how many of them are of this step); 0: a chunk of a prompt."""
    tokens = np.full((max(len(rows), 1), MAX_LEN), -1, dtype=np.int32)
    for row, (text, _) in enumerate(rows):
        tokens[row, : len(text)] = text
    lengths = np.array([len(text) for text, _ in rows], dtype=np.int32)
    sampled = [text[len(text) - new :] for text, new in rows]
    return proposer.propose(sampled, lengths, tokens, slot_mappings=None)


def fresh_chain(text, depth=K):
    """What `suffix` proposes that has just been started on the text."""
    drafter = SuffixDrafter(SuffixOptions(suffix_decoding_tree=False), VOCAB)
    request = SimpleNamespace(
        request_id=0, token_ids=text, prompt_len=len(text), kv_len=len(text) - 1, reference_ids=()
    )
    drafter.start(request)
    return drafter.propose([request], [Plan(1, depth, depth)])[0].token_ids[1:]


class Schedule:
    """Requests that come, grow by 1 to K+1 tokens, are preempted, come back, end; in rows that move."""

    def __init__(self, seed, num_rows, same_texts=False):
        self.random, self.num_rows, self.same_texts = random.Random(seed), num_rows, same_texts
        self.running, self.waiting = [], []

    def step(self):
        draw = self.random
        while len(self.running) < self.num_rows and draw.random() < 0.7:
            is_back = self.waiting and draw.random() < 0.5
            prompt = [1, 2, 3, 1, 2] if self.same_texts else [draw.randrange(5) for _ in range(draw.randint(1, 12))]
            self.running.append(self.waiting.pop(0) if is_back else prompt)
        if self.running and draw.random() < 0.2:
            self.waiting.append(self.running.pop(draw.randrange(len(self.running))))
        draw.shuffle(self.running)
        self.running = [text for text in self.running if len(text) + 2 * K + 2 <= MAX_LEN]
        rows = []
        for text in self.running:
            new = draw.choice([0, 1, 1, 2, K + 1])
            text.extend(draw.randrange(3) for _ in range(new))
            rows.append((list(text), new))
        return rows


@pytest.mark.parametrize("same_texts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_move_draft_as_if_each_were_alone(seed, same_texts):
    proposer, schedule = Proposer(vllm_config()), Schedule(seed, 4, same_texts)
    drafted = 0
    for _ in range(60):
        rows = schedule.step()
        drafts = propose(proposer, rows)
        assert drafts == [fresh_chain(text) if new else [] for text, new in rows]
        drafted += sum(map(len, drafts))
        assert len(proposer.states) <= 4
    assert drafted > 100


def test_a_request_keeps_its_state_wherever_its_row_goes():
    proposer = Proposer(vllm_config())
    started = []
    inner = proposer.states.drafter.start
    proposer.states.drafter.start = lambda request: (started.append(request), inner(request))
    texts = [[i, i + 1, i] for i in range(3)]
    for step in range(20):
        order = texts if step % 2 else texts[::-1]
        for text in order:
            text.append(text[-2])
        propose(proposer, [(list(text), 1) for text in order])
    assert len(started) == 3


def test_equal_texts_have_a_state_each_and_part():
    proposer = Proposer(vllm_config())
    one, two = [1, 2, 1], [1, 2, 1]
    propose(proposer, [(one, 1), (two, 1)])
    assert len(proposer.states) == 2
    one, two = [*one, 2, 3], [*two, 2, 4, 1, 2]
    assert propose(proposer, [(two, 4), (one, 2)]) == [fresh_chain(two), fresh_chain(one)]
    assert len(proposer.states) == 2


def test_states_are_bounded_in_number_and_tokens_and_let_go_of_the_drafter():
    drafter = SuffixDrafter(SuffixOptions(suffix_decoding_tree=False), VOCAB)
    states = RowStates(drafter, most=5, most_tokens=100)
    for i in range(50):
        states.guess(np.array([i % VOCAB, *([i] * 30)]), 1, K)
        assert len(states) <= 5
        assert states.num_tokens <= 100
        assert len(drafter._requests) == len(states)
    assert states.num_tokens == sum(len(row.token_ids) for _, row in states._states.values())
    states.guess(np.zeros(500, dtype=np.int64), 1, K)
    assert len(states) == 1  # the one in use stays, however long it is


def test_chunks_and_the_end_of_the_context_draft_nothing():
    proposer = Proposer(vllm_config())
    text = [1, 2] * (MAX_LEN // 2)
    drafts = propose(proposer, [(text[:10], 0), (text, 1), (text[:-1], 1), (text[:-3], 1), (text[:20], 1)])
    assert [len(draft) for draft in drafts] == [0, 0, 0, 2, K]
    assert propose(proposer, []) == []


def test_the_table_drafts_and_takes_its_turn(tmp_path):
    texts = [[5, 6, 7, 8, 9]] * 20
    folder = save_table(tmp_path / "table", table_of_texts(texts, VOCAB))
    alone = Proposer(vllm_config({"method": "ngram_lm", "model": str(folder)}))
    assert propose(alone, [([1, 5], 1)]) == [[6, 7, 8]]
    both = Proposer(vllm_config(f"suffix,ngram_lm={folder}"))
    assert propose(both, [([1, 5], 1), ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], 1)]) == [[6, 7, 8], [3, 4, 1]]


def test_prompt_lookup_drafts_its_copy():
    assert propose(Proposer(vllm_config("ngram")), [([1, 2, 3, 4, 1, 2], 1), ([1, 2, 3], 1)]) == [[3, 4, 1], []]


def test_the_best_chain_of_a_tree():
    #        0 ─ 1 (.6) ─ 3 (.2)
    #          └ 2 (.5) ─ 4 (.4) ─ 5 (.3)      1.2 expected below 2, 0.8 below 1
    tree = DraftTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 4], 1, [1.0, 0.6, 0.5, 0.2, 0.4, 0.3])
    assert best_chain(tree) == [2, 4, 5]
    assert best_chain(DraftTree([9], [-1], 1, [1.0])) == []


def test_a_chain_of_the_table_is_its_most_probable_one():
    table = table_of_texts([[1, 2, 3, 4]] * 9 + [[1, 5, 6, 7]] * 3, VOCAB)
    states = RowStates(NgramLmDrafter(table), 2)
    assert states.guess(np.array([0, 1]), 1, 3) == [2, 3, 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("eagle3", "foreword export --to vllm"),
        ("suffix,recycling", "recycling cannot draft"),
        ({"suffix_decoding_max_cached_requests": 4}, "does not say when an answer has ended"),
        ({"no_such_setting": 4}, "no_such_setting"),
    ],
)
def test_what_the_hook_cannot_serve_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Proposer(vllm_config(settings))


def test_suffix_drafts_chains_by_default():
    assert checked_config({}).settings == {"method": "suffix", "suffix_decoding_tree": False}
