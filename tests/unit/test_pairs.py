"""Which drafters and rules go together: a pair works, or the `LLM` is refused with the reason; no answer fails half-way."""

from dataclasses import replace

import pytest

from foreword.draft.drafter_type import DrafterType
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import VERIFIERS
from foreword.verify.block import Block, judged_path
from tests.support.sampled_drafter import BlurredModel, Branching, Reranked
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, SAMPLED
from tests.support.toy_laws import distance, logits_of, plain_law, production_law, random_model
from tests.support.toy_llm import byte_tokenizer, toy_llm

DECODER, TOKENIZER = ToyDecoder(num_layers=2), byte_tokenizer()


@pytest.fixture
def own_drafter(monkeypatch):
    """Puts a drafter of the test's in the place of draft_model."""

    def put(make):
        toy = DrafterType(name="draft_model", summary="a drafter of the test's", make=make, takes="PATH")
        monkeypatch.setattr("foreword.draft.model.draft_model.DRAFT_MODEL", toy)

    return put


def drawing(kind):
    model, size = BlurredModel(DECODER, 0.6), DECODER.spec.vocab_size
    return lambda settings, target: kind(model, (2, 1), settings.draft_mode, size)


def build(drafter, verifier) -> LLM:
    return LLM(toy_llm(DECODER, TOKENIZER).model, drafter, verifier=verifier)


REFUSED = {
    (Reranked, "rejection"): "'reranked' and verifier 'rejection' do not go together: .* use verifier 'match'",
    (Reranked, "block"): "'reranked' and verifier 'block' do not go together: .*reranked, pruned or merged",
    (Branching, "block"): "'branching' and verifier 'block' do not go together: .*use verifier 'rejection' or 'match'",
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("kind", [Reranked, Branching])
def test_what_can_never_work_is_refused_before_anything_is_asked(kind, verifier, own_drafter):
    own_drafter(drawing(kind))
    if (kind, verifier) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[kind, verifier]):
            build("draft_model=toy", verifier)
        return
    llm = build("draft_model=toy", verifier)
    assert len(llm.generate(PROMPTS[:3], SamplingParams(**{**SAMPLED, "max_tokens": 9}))) == 3


def test_a_cascade_draws_what_its_parts_draw(own_drafter):
    own_drafter(drawing(Reranked))
    cascade = {"method": "ngram,draft_model=toy"}
    with pytest.raises(ConfigError, match="'ngram,reranked' and verifier 'rejection' do not go together"):
        build(cascade, "rejection")
    params = SamplingParams(**{**SAMPLED, "max_tokens": 9})
    merging = build({**cascade, "cascade_merge": True}, "rejection")
    assert len(merging.generate(PROMPTS[:3], params)) == 3  # merged nodes count as chosen


def test_block_judges_the_most_promising_path_of_a_chosen_tree():
    tree = DraftTree([9, 8, 1, 2, 3, 4], [-1, 0, 1, 1, 3, 2], 2, [1.0, 1.0, 0.5, 0.3, 0.29, 0.05])
    assert judged_path(tree) == [0, 1, 3, 4]  # 0.3 + 0.29 beats 0.5 + 0.05
    assert list(judged_path(DraftTree.chain([9, 8], [1]))) == [0, 1, 2]
    assert judged_path(DraftTree([9, 1, 2, 3], [-1, 0, 0, 2])) == [0, 2, 3]  # nothing said: the deepest


class AsAsked(Block):
    """Hands the rule the logits it asked for and no others."""

    def decide(self, tree, answers, sampler):
        nodes = self.ask(tree, 0, 0, sampler).logits
        rows = answers.logits[[node - tree.num_known + 1 for node in nodes]]
        verdict = super().decide(tree, replace(answers, logits=rows), sampler)
        assert tree.path_to(verdict.path[-1]) == list(verdict.path), "the rows that are kept are no path of the tree"
        assert verdict.accepted == tuple(tree.token_ids[node] for node in verdict.path[tree.num_known :])
        return verdict


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("seed", range(4))
def test_the_law_of_block_on_a_chosen_tree_is_the_targets(seed):
    target = random_model(seed, zeros=seed % 2 == 1)
    tree = DraftTree([0, 1, 2, 0, 1, 2], [-1, 0, 0, 2, 3, 3], 1, [1.0, 0.2, 0.5, 0.4, 0.1, 0.3])
    assert judged_path(tree) == [0, 2, 3, 5]

    def logits_after(prefix):
        return logits_of(target(prefix))

    law = production_law(lambda chance: AsAsked(chance=lambda *_: chance), [(tree, 1)], logits_after, 4)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert distance(law, plain_law(logits_after, 4)) < 1e-6
