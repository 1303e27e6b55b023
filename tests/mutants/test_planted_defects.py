"""Defects planted in the engine: each must change tokens or the cache, so that the equivalence tests would see it.

A defect that no test sees is a hole in the tests. `run_and_compare` is what those tests check: tokens equal to plain decoding, cache rows equal
to the tokens that were committed.
"""

from dataclasses import replace

import numpy as np
import pytest

from foreword.engine import kv_memory, prefix_cache
from foreword.engine.kv_budget import KVBudget
from foreword.engine.prefix_tree import BLOCK, PrefixTree
from foreword.engine.request import Request
from foreword.runtime.base import Need
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Sampler
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Matching
from foreword.verify.match import match
from foreword.verify.verdict import Verdict
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyCache, ToyDecoder
from tests.support.toy_engine import GREEDY, PROMPTS, SAMPLED, make_engine, plain_tokens


class AcceptAlways(Matching):
    def decide(self, tree, answers, sampler):
        choices = answers.choices
        last = max(range(tree.num_nodes), key=lambda n: tree.depths[n])
        path = tree.path_to(last)
        return Verdict(tuple(path), tuple(tree.token_ids[n] for n in path[tree.num_known :]), choices[last])


class ResampleOnAMatch(Matching):
    def decide(self, tree, answers, sampler):
        choices = answers.choices
        verdict = match(tree, choices)
        if not verdict.num_accepted:
            return verdict
        return Verdict(verdict.path, (*verdict.accepted[:-1], choices[tree.num_known - 1]), verdict.extra_token)


class NoiseByStep(Matching):
    """Keyed by how often it was asked instead of by position."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "step", [0])

    def ask(self, tree, first_node, kv_len, sampler: Sampler):
        self.step[0] += 1
        return super().ask(tree, first_node, self.step[0] * 1000, sampler)


class OffByOnePosition(Matching):
    """The noise of the node's own position instead of the next one's, for drafted nodes."""

    def ask(self, tree, first_node, kv_len, sampler):
        ask = super().ask(tree, first_node, kv_len, sampler)
        shifted = [replace(d, key=sampler.key(kv_len + tree.depths[d.node - first_node])) for d in ask.draws[1:]]
        return replace(ask, draws=[*ask.draws[:1], *shifted])


class WrongPositions(ToyDecoder):
    """Position by row instead of by depth: wrong as soon as a tree has siblings."""

    def forward(self, batch, cache, need: Need, inputs=None):
        rows = [
            kv + i
            for kv, a, b in zip(batch.kv_lens, batch.starts, batch.starts[1:], strict=False)
            for i in range(b - a)
        ]
        return super().forward(replace(batch, positions=np.asarray(rows, np.int32)), cache, need, inputs)


class SiblingLeak(ToyDecoder):
    """Every node sees the node before it, sibling or not."""

    def forward(self, batch, cache, need: Need, inputs=None):
        parents = np.arange(-1, batch.num_nodes - 1, dtype=np.int32)
        parents[np.asarray(batch.starts[:-1])] = -1
        return super().forward(replace(batch, parents=parents), cache, need, inputs)


class DroppedNodeKept(Target):  # type: ignore[misc]
    """The cache keeps the first rows of the scratch instead of those of the path."""

    def commit(self, slot, path):
        super().commit(slot, range(len(path)))


def run_and_compare(options, *, decoder=None, verifier=None, target=None, drafter="bushy") -> bool:
    """Whether a run is right: its tokens those of plain decoding and its cache the tokens committed."""
    oracle, params = ToyDecoder(), SamplingParams(**options)
    decoder = decoder or ToyDecoder()
    answers = {tuple(p): plain_tokens(oracle, p, SamplingParams(**{**options, "max_tokens": 80})) for p in PROMPTS}

    def script(answer, step, vocab):
        return SCRIPTS[drafter](answer or [0] * 8, step, vocab)

    scripted = ScriptedDrafter(drafter, script, answers, oracle.spec.vocab_size)
    engine = make_engine(decoder, scripted, verifier=verifier, target=(target or Target)(decoder))
    requests = [Request(list(p), params, context_len=4096) for p in PROMPTS]
    for request in requests:
        engine.add(request)
    while any(not r.is_finished for r in requests):
        engine.step()
        for request in engine.running:
            if request.kv_len:
                tokens, positions = engine.parts.target.cache.rows(request.slot)
                if tokens.flatten().tolist() != request.token_ids[: request.kv_len]:
                    return False
                if positions.flatten().tolist() != list(range(request.kv_len)):
                    return False
    return all(r.new_ids == plain_tokens(oracle, p, params) for r, p in zip(requests, PROMPTS, strict=True))


@pytest.mark.parametrize("drafter", ["bushy", "bursts", "right-until-2"])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_engine_without_defects_passes(options, drafter):
    assert run_and_compare(options, drafter=drafter)


DEFECTS = {
    "accept always": {"verifier": AcceptAlways},
    "resample on a match": {"verifier": ResampleOnAMatch, "drafter": "always-right-4"},
    "noise keyed by step": {"verifier": NoiseByStep},
    "noise of the wrong position": {"verifier": OffByOnePosition, "drafter": "always-right-4"},
    "position by row": {"decoder": WrongPositions},
    "sibling leak in the mask": {"decoder": SiblingLeak},
    "dropped node kept in the cache": {"target": DroppedNodeKept},
}
SAMPLED_ONLY = {"noise keyed by step", "noise of the wrong position"}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_caught(name):
    parts = {k: v() if k in ("verifier", "decoder") else v for k, v in DEFECTS[name].items()}
    assert not run_and_compare(SAMPLED if name in SAMPLED_ONLY else GREEDY, **parts)


class ForksOneRowShort(ToyCache):
    """The last row of a copy holds something else."""

    def fork(self, slot, length, capacity):
        forked = super().fork(slot, length, capacity)
        self.regions[forked][-1] = (0, length - 1)
        return forked


class ForksAnotherRegion(ToyCache):
    """The copy is of the region opened first."""

    def fork(self, slot, length, capacity):
        return super().fork(min(slot for slot, held in self.lengths.items() if held >= length), length, capacity)


class SharesItsRows(ToyCache):
    """A copy that is none: what is written to one is in the other."""

    def __init__(self):
        super().__init__()
        self.twins = {}

    def fork(self, slot, length, capacity):
        forked = super().fork(slot, length, capacity)
        self.twins[forked] = slot
        return forked

    def commit(self, slot, path):
        super().commit(slot, path)
        twin = self.twins.get(slot)
        if twin in self.regions:
            rows = min(self.lengths[slot], self.lengths[twin])
            self.regions[twin][:rows] = self.regions[slot][:rows]


class MixesUpTheLast(PrefixTree):
    """Takes the last block for shared, whatever it holds."""

    def longest(self, token_ids, limit):
        entries, length = super().longest(token_ids, limit)
        more = min((entry.num_held for entry in entries), default=0)
        return entries, max(length, min(limit, more)) if length >= BLOCK else length


STEMS = [list(range(2, 11)) * 5, [3, 1, 4, 1, 5, 9, 2, 6] * 5]


def run_shared(monkeypatch, *, cache=ToyCache, tree=PrefixTree, rows=None) -> bool:
    """Whether prompts with shared beginnings, two answers each, and room for a few, have the tokens of plain decoding."""
    monkeypatch.setattr(prefix_cache, "PrefixTree", tree)
    monkeypatch.setattr(kv_memory, "FIRST_ROWS", 4)
    decoder = ToyDecoder()
    monkeypatch.setattr(decoder, "new_cache", cache)
    engine = make_engine(decoder, batch_size=4, budget=KVBudget(rows, max_finished=8))
    prompts = [[*stem[:length], last] for length in (20, 40) for stem in STEMS for last in (0, 1, 2)] * 2
    params = SamplingParams(**GREEDY)
    requests = [Request(list(prompt), params, context_len=4096) for prompt in prompts]
    for request in requests:
        engine.add(request)
    try:
        while engine.step():
            for region in engine.memory._regions.values():
                held = engine.parts.target.cache.regions[region.slot][: region.num_held]
                if [token for token, _ in held] != list(region.token_ids[: region.num_held]):
                    return False
    except AssertionError:
        return False
    return all(r.new_ids == plain_tokens(ToyDecoder(), p, params) for r, p in zip(requests, prompts, strict=True))


@pytest.mark.parametrize("rows", [None, 200])
def test_shared_beginnings_without_defects_pass(monkeypatch, rows):
    assert run_shared(monkeypatch, rows=rows)


@pytest.mark.parametrize(
    "defect",
    [
        {"cache": ForksOneRowShort},
        {"cache": ForksAnotherRegion},
        {"cache": SharesItsRows},
        {"tree": MixesUpTheLast},
    ],
    ids=lambda defect: next(iter(defect.values())).__name__,
)
def test_a_defect_of_shared_beginnings_is_caught(defect, monkeypatch):
    assert not run_shared(monkeypatch, **defect)


def test_a_known_only_tree_is_its_prompt():
    assert DraftTree.chain([1, 2, 3]).num_drafted == 0
