"""A draft model of another tokenizer: its text arrives in the target's tokens, whatever the seam looks like."""

import pytest
import torch

from foreword.draft.base import Plan
from foreword.draft.model.universal import UniversalDrafter
from foreword.sampling.params import SamplingParams
from tests.support.drafters import Checked
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, plain_tokens, run
from tests.support.toy_tokenizers import LETTERS, PairTokenizer, SingleTokenizer

SINGLES, PAIRS = SingleTokenizer(), PairTokenizer()


class Reciting(ToyDecoder):
    """Knows one text by heart: after any beginning of it in its own tokens, the next token of its encoding."""

    def __init__(self, text, tokenizer, vocab_size, **options):
        super().__init__(vocab_size=vocab_size, **options)
        self.text, self.tokenizer = text, tokenizer

    def forward(self, batch, cache, need, inputs=None):
        self.before = {slot: [t for t, _ in cache.regions[slot][: cache.lengths[slot]]] for slot in batch.slots}
        self.now = batch
        return super().forward(batch, cache, need, inputs)

    def logits_after(self, tokens, position):
        (slot,) = self.now.slots
        so_far = [*self.before[slot], *self.now.token_ids.tolist()][: position + 1]
        rest = self.text[len(self.tokenizer.decode(so_far)) :]
        logits = torch.zeros(self.spec.vocab_size)
        if rest:
            logits[self.tokenizer.encode(rest)[0]] = 20.0
        return logits


class View:
    request_id, prompt_len = 0, 1

    def __init__(self, token_ids):
        self.token_ids = token_ids
        self.kv_len = len(token_ids) - 1


TEXT = "abc dig had a big hedge" + " fig" * 10


@pytest.mark.parametrize("length", range(1, 12))
def test_single_letters_from_a_model_of_pairs(length):
    """At every place, odd ones too, where a pair straddles the seam."""
    draft = Reciting(TEXT, PAIRS, PairTokenizer.vocab_size)
    drafter, view = UniversalDrafter(draft, PAIRS, SINGLES), View(SINGLES.encode(TEXT[:length]))
    drafter.start(view)
    (tree,) = drafter.propose([view], [Plan(1, 6, 6)])
    tree.check()
    assert SINGLES.decode(tree.token_ids[1:]) == TEXT[length : length + 6]


@pytest.mark.parametrize("length", range(2, 12, 2))
def test_pairs_from_a_model_of_single_letters(length):
    draft = Reciting(TEXT, SINGLES, 12)
    drafter, view = UniversalDrafter(draft, SINGLES, PAIRS), View(PAIRS.encode(TEXT[:length]))
    drafter.start(view)
    (tree,) = drafter.propose([view], [Plan(1, 3, 3)])
    assert PAIRS.decode(tree.token_ids[1:]) == TEXT[length : length + 6]
    assert len(tree.token_ids) == 1 + 3


def test_an_oracle_of_another_tokenizer_saves_steps():
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=40)
    answer = plain_tokens(decoder, PROMPTS[0], params)
    draft = Reciting(SINGLES.decode([*PROMPTS[0], *answer]), PAIRS, PairTokenizer.vocab_size)
    drafter = Checked(UniversalDrafter(draft, PAIRS, SINGLES))
    (request,) = run(make_engine(decoder, drafter, num_nodes=6), PROMPTS[:1], [params])
    assert request.new_ids == answer
    assert request.stats.accepted_tokens == request.stats.drafted_tokens
    assert request.stats.tokens_per_step > 5


def test_its_context_end_stops_drafting():
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=40)
    draft = ToyDecoder(vocab_size=PairTokenizer.vocab_size, context_len=10)
    drafter = Checked(UniversalDrafter(draft, PAIRS, SINGLES))
    (request,) = run(make_engine(decoder, drafter, num_nodes=6), PROMPTS[:1], [params])
    assert request.new_ids == plain_tokens(decoder, PROMPTS[0], params)
    assert drafter.num_drafted > 0
    assert drafter.drafter.follower.cache.num_open == 0


def test_half_a_character_waits_for_the_other_half():
    class Halves(SingleTokenizer):
        """Token 11 is the first byte of a character."""

        def decode(self, ids, skip_special_tokens=True):
            return "".join("\ufffd" if i == 11 else LETTERS[i] for i in ids)

    draft = Reciting("abcdefgh", PAIRS, PairTokenizer.vocab_size)
    drafter, view = UniversalDrafter(draft, PAIRS, Halves()), View([0, 1, 11])
    drafter.start(view)
    for token_ids, num_drafted in (([0, 1, 11], 0), ([0, 1], 4)):
        view.token_ids, view.kv_len = token_ids, len(token_ids) - 1
        (tree,) = drafter.propose([view], [Plan(1, 4, 4)])
        assert tree.num_drafted == num_drafted


def test_damaged_weights_are_reported_once_and_cost_no_words(caplog):
    """[R59]"""

    class Damaged(ToyDecoder):
        def logits_after(self, tokens, position):
            return torch.full((self.spec.vocab_size,), float("nan"))

    params, drafter = (
        SamplingParams(max_tokens=12),
        UniversalDrafter(Damaged(PairTokenizer.vocab_size), PAIRS, SINGLES),
    )
    (request,) = run(make_engine(ToyDecoder(), drafter, num_nodes=4), PROMPTS[:1], [params])
    assert request.new_ids == plain_tokens(ToyDecoder(), PROMPTS[0], params)
    assert request.stats.drafted_tokens == 0
    assert caplog.text.count("weights are damaged") == 1
