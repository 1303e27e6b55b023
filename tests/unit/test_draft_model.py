"""A draft model keeps up with the target, whatever happens to its guesses."""

import logging
from dataclasses import replace

import pytest
import torch

from foreword.draft.draft_config import DraftConfig
from foreword.draft.model.draft_model import DraftModelOptions, ModelDrafter
from foreword.engine.fixed_policy import FixedController
from foreword.engine.kv_budget import KVBudget
from foreword.engine.request import Request
from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.verify.rejection import Rejection
from tests.support.drafters import Checked, make_drafter
from tests.support.toy_decoder import BlurredDecoder, ToyDecoder
from tests.support.toy_engine import GREEDY, PROMPTS, SAMPLED, make_engine, plain_tokens, run

OPTIONS = DraftModelOptions()
DECODER = ToyDecoder()


def model_drafter(draft, target_vocab=12, draft_mode=DraftMode.SHARED, **options):
    return ModelDrafter(draft, target_vocab, DraftModelOptions(**options), draft_mode=draft_mode)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 16])
def test_a_target_that_drafts_for_itself_is_always_accepted(k, options):
    """[R24]: any slip in the draft's cache, a full accept's missing token above all, would show within 200 tokens."""
    params = SamplingParams(max_tokens=1 + (k + 1) * (200 // (k + 1)), **options)
    drafter = model_drafter(DECODER)
    for request in run(make_engine(DECODER, drafter, num_nodes=k), PROMPTS[:2], [params] * 2):
        assert request.stats.accepted_tokens == request.stats.drafted_tokens > 0
        assert request.stats.tokens_per_step == k + 1


class CheckedFollower(Checked):
    """After each pass, the draft's cache holds a beginning of the text and nothing else that counts."""

    def propose(self, requests, plans):
        trees = super().propose(requests, plans)
        follower = self.drafter.follower
        for request, plan in zip(requests, plans, strict=True):
            place = follower._places[request.request_id]
            region = follower.cache.regions[place.slot][: follower.cache.lengths[place.slot]]
            assert [token for token, _ in region] == place.tokens
            assert [position for _, position in region] == list(range(len(region)))
            if plan.num_nodes:
                known = len(request.token_ids) - 1
                assert place.tokens[:known] == request.token_ids[:known]
        return trees


@pytest.mark.parametrize("width", [1, 3])
def test_its_cache_is_the_text_from_the_start(width):
    """[R26]: contents, not only lengths."""
    drafter = CheckedFollower(model_drafter(BlurredDecoder(DECODER, 0.4), draft_tree_width=width))
    params = SamplingParams(**SAMPLED)
    for request in run(make_engine(DECODER, drafter, num_nodes=5), PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], params)
    assert drafter.drafter.follower.cache.num_open == 0


def test_after_plain_steps_it_catches_up_in_one_pass():
    """[R64]: five drafts, none for ten steps, five again; the acceptance of a model that agrees is 1 both times."""

    class OnOffOn(FixedController):
        step = 0

        def plan(self, requests):
            self.step += 1
            self.num_nodes = 0 if 4 <= self.step < 14 else 5
            return super().plan(requests)

    target, draft = Target(DECODER), ToyDecoder()
    engine = make_engine(DECODER, model_drafter(draft), target=target, prefill_chunk=64)
    engine.parts = replace(engine.parts, controller=OnOffOn(5, "draft_model", 64))
    (request,) = run(engine, PROMPTS[:1], [SamplingParams(max_tokens=1 + 2 * 6 + 10 + 3 * 6)])
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 5 * 5
    assert draft.num_passes == 5 * 5  # one a drafted token: eleven unread tokens are one pass


@pytest.mark.parametrize("length", [200, 1300])
def test_texts_that_begin_alike_are_read_once(length, monkeypatch):
    draft = BlurredDecoder(DECODER, 0.4)
    num_read, inner = [], draft.forward
    monkeypatch.setattr(draft, "forward", lambda batch, *rest: num_read.append(batch.num_nodes) or inner(batch, *rest))
    drafter = CheckedFollower(model_drafter(draft))
    stem = [(i * i) % 12 for i in range(length)]
    prompts, params = [[*stem, i] for i in range(4)], SamplingParams(max_tokens=16)
    engine = make_engine(DECODER, drafter, prefill_chunk=512, num_nodes=2, budget=KVBudget(max_finished=4))
    requests = [Request(prompt, params, context_len=4096) for prompt in prompts]
    for request in requests:
        engine.add(request)
    while engine.step():
        pass
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.new_ids == plain_tokens(DECODER, prompt, params)
    begun = sum(number for number in num_read if number > 32)
    assert length <= begun <= length + 4
    assert drafter.drafter.follower.cache.num_open == 0


def test_one_pass_a_depth_serves_all_requests():
    draft = ToyDecoder()
    engine = make_engine(DECODER, model_drafter(draft), num_nodes=4, batch_size=5, prefill_chunk=64)
    params = SamplingParams(max_tokens=1 + 4 * 5)
    run(engine, PROMPTS, [params] * len(PROMPTS))
    # prompts are read one after the other, so requests are up to four steps apart
    assert draft.num_passes <= 4 * (4 + len(PROMPTS))


def test_noise_shared_with_the_target_raises_agreement():
    """A drafter that took its top-1 token would agree less: the reason for sharing."""
    draft, params = BlurredDecoder(DECODER, 0.2), SamplingParams(max_tokens=120, temperature=1.5, seed=1)

    def accepted(drafter):
        requests = run(make_engine(DECODER, drafter, num_nodes=3), PROMPTS, [params] * len(PROMPTS))
        return sum(r.stats.accepted_tokens for r in requests) / sum(r.stats.drafted_tokens for r in requests)

    class Likeliest(ModelDrafter):
        """Drafts as if the request were greedy."""

        def propose(self, requests, plans):
            originals = [request.sampler for request in requests]
            for request in requests:
                request.sampler = Request([1], SamplingParams(), context_len=9).sampler
            trees = super().propose(requests, plans)
            for request, sampler in zip(requests, originals, strict=True):
                request.sampler = sampler
            return trees

    assert accepted(model_drafter(draft)) > accepted(Likeliest(draft, 12, OPTIONS)) + 0.1


def test_padded_vocabularies_of_different_sizes():
    """[R52]: target 104 rows, draft 97, tokenizer 95: pad rows are never proposed, though likeliest here."""

    class Padded(BlurredDecoder):
        def logits_after(self, tokens, position):
            return super().logits_after(tokens, position) + torch.tensor([0.0] * 95 + [50.0] * 2)

    target = ToyDecoder(vocab_size=104, seed=3)
    draft = Padded(target, 0.3, vocab_size=97)
    for options in ({}, {"temperature": 1.2, "seed": 4}):
        for width in (1, 2):
            config = DraftModelOptions(draft_tree_width=width)
            drafter = Checked(ModelDrafter(draft, 104, config, vocab_size=95))
            params = SamplingParams(max_tokens=60, **options)
            proposed = []
            inner = drafter.drafter.propose
            drafter.drafter.propose = lambda r, p, inner=inner, to=proposed: to.extend(inner(r, p)) or to[-len(r) :]
            (request,) = run(make_engine(target, drafter, num_nodes=4), [[1, 2, 3]], [params])
            assert request.new_ids == plain_tokens(target, [1, 2, 3], params)
            assert max((t for tree in proposed for t in tree.token_ids[tree.num_known :]), default=0) < 95
            assert request.stats.accepted_tokens > 0


def test_a_text_that_the_draft_model_cannot_read_is_not_drafted_for():
    """[R52]: id 100 in the prompt, 97 rows in the draft: no crash, no drafts, the same tokens; others go on."""
    target = ToyDecoder(vocab_size=104, seed=3)
    drafter = Checked(model_drafter(ToyDecoder(vocab_size=97, seed=3), 104))
    params = SamplingParams(max_tokens=20)
    unreadable, readable = run(make_engine(target, drafter, num_nodes=4), [[1, 100, 2], [1, 2, 3]], [params] * 2)
    assert unreadable.new_ids == plain_tokens(target, [1, 100, 2], params)
    assert unreadable.stats.drafted_tokens == 0
    assert readable.stats.drafted_tokens > 0


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("prompt_len", [20, 31, 32, 40])
def test_a_shorter_context_ends_drafting_and_nothing_else(prompt_len, width):
    """[R55]: the draft model knows 32 positions, the text grows past them."""
    draft = ToyDecoder(context_len=32)
    positions = []
    inner = draft.forward
    draft.forward = lambda batch, *rest: positions.extend(batch.positions.tolist()) or inner(batch, *rest)
    prompt = [i % 12 for i in range(prompt_len)]
    params = SamplingParams(max_tokens=30)
    drafter = Checked(model_drafter(draft, draft_tree_width=width))
    (request,) = run(make_engine(DECODER, drafter, num_nodes=4), [prompt], [params])
    assert request.new_ids == plain_tokens(DECODER, prompt, params)
    assert max(positions, default=0) < 32
    assert (drafter.num_drafted > 0) == (prompt_len < 32)


def test_the_context_end_of_the_target():
    """[R56]: context 64, prompt 60, ten tokens asked for, four drafted per step: four tokens, reason length."""
    decoder = ToyDecoder(context_len=64)
    prompt = [i % 12 for i in range(60)]
    engine = make_engine(decoder, model_drafter(decoder), num_nodes=4)
    (request,) = run(engine, [prompt], [SamplingParams(max_tokens=10)])
    assert len(request.new_ids) == 4
    assert request.finish_reason == "length"


def test_damaged_weights_are_reported_once_and_cost_no_words(caplog):
    """[R59]"""

    class Damaged(ToyDecoder):
        def logits_after(self, tokens, position):
            return torch.full((12,), float("nan"))

    params = SamplingParams(max_tokens=20)
    drafter = Checked(model_drafter(Damaged()))
    with caplog.at_level(logging.WARNING):
        (request,) = run(make_engine(DECODER, drafter, num_nodes=4), PROMPTS[:1], [params])
    assert request.new_ids == plain_tokens(DECODER, PROMPTS[0], params)
    assert drafter.num_drafted == 0
    assert [record.message for record in caplog.records if "NaN" in record.message] == [caplog.records[0].message]


def test_an_unsure_chain_ends_early():
    blurred, params = BlurredDecoder(DECODER, 0.5), SamplingParams(max_tokens=80)

    def rates(threshold):
        drafter = model_drafter(blurred, draft_confidence_threshold=threshold)
        (request,) = run(make_engine(DECODER, drafter, num_nodes=6), PROMPTS[:1], [params])
        return request.stats.accepted_tokens / request.stats.drafted_tokens

    assert rates(0.9) > rates(0.0)


@pytest.mark.parametrize("width", [1, 3])
def test_a_rule_that_compares_distributions_gets_rows_and_a_whole_chain(width):
    """With own noise, guesses come with the row they were drawn from, and *rejection* takes them."""
    drafter = Checked(model_drafter(BlurredDecoder(DECODER, 0.3), draft_mode=DraftMode.OWN, draft_tree_width=width))
    seen = []
    inner = drafter.drafter.propose
    drafter.drafter.propose = lambda r, p: seen.extend(inner(r, p)) or seen[-len(r) :]
    params = SamplingParams(**SAMPLED)
    (request,) = run(make_engine(DECODER, drafter, num_nodes=4, verifier=Rejection()), PROMPTS[:1], [params])
    assert len(request.new_ids) == params.max_tokens
    drafted = [tree for tree in seen if tree.num_drafted]
    assert all(tree.is_chain and tree.shape_is_fixed and tree.has_drawn_nodes for tree in drafted)
    for tree in drafted:
        for node in range(tree.num_known, tree.num_nodes):
            row = tree.draft_probs[node]
            assert row.shape == (12,)
            assert float(row.sum()) == pytest.approx(1.0)
            assert float(row[tree.token_ids[node]]) > 0


def test_an_oracle_under_rejection_is_always_accepted():
    drafter = model_drafter(DECODER, draft_mode=DraftMode.OWN)
    params = SamplingParams(max_tokens=1 + 5 * 20, temperature=0.9, seed=2)
    (request,) = run(make_engine(DECODER, drafter, num_nodes=4, verifier=Rejection()), PROMPTS[:1], [params])
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 80


def test_a_draft_model_needs_a_path_and_a_target_with_a_tokenizer():
    with pytest.raises(ConfigError, match="give one as draft_model=PATH"):
        make_drafter(DraftConfig(method="draft_model"), Target(DECODER))
    with pytest.raises(ConfigError, match="this one has no tokenizer"):
        make_drafter(DraftConfig(method="draft_model", path="somewhere"), Target(DECODER))


def test_greedy_and_sampled_requests_share_the_draft_passes():
    drafter = Checked(model_drafter(BlurredDecoder(DECODER, 0.25)))
    penalised = SamplingParams(max_tokens=40, repetition_penalty=1.3)
    options = [SamplingParams(**GREEDY), SamplingParams(**SAMPLED), penalised]
    requests = run(make_engine(DECODER, drafter, num_nodes=4, batch_size=3), PROMPTS[:3], options)
    alone = [
        run(make_engine(DECODER, model_drafter(BlurredDecoder(DECODER, 0.25)), num_nodes=4), [prompt], [params])[0]
        for prompt, params in zip(PROMPTS, options, strict=False)
    ]
    for request, single in zip(requests, alone, strict=True):
        assert request.new_ids == single.new_ids
        assert request.stats.accepted_tokens == single.stats.accepted_tokens
