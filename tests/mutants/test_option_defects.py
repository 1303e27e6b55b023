"""Defects of sampling options as other libraries had them, planted: the equality with plain decoding must break."""

from dataclasses import replace

import pytest

from foreword.sampling.params import SamplingParams
from foreword.verify.base import Matching, path_tokens
from foreword.verify.match import match
from tests.support.option_oracle import plain_answer
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, run

PROMPTS = PROMPTS[:3]
DECODER = ToyDecoder(seed=2, sharpness=1.5)
OPTIONS = {
    "frequency": SamplingParams(max_tokens=24, frequency_penalty=0.6),
    "bad words": SamplingParams(max_tokens=24, bad_words=((5, 2), (2, 0), (0, 1), (9, 3), (3, 2), (5, 5))),
    "bias": SamplingParams(max_tokens=24, logit_bias={5: -100.0, 0: -100.0}),
}


class Shaping(Matching):
    """Matching with the history that `history` makes of a node's own."""

    def decide(self, tree, answers, sampler):
        choices = {}
        for node in range(tree.num_known - 1, tree.num_nodes):
            row = answers.logits[node - tree.num_known + 1]
            choices[node] = self.choose(row, tree, node, answers, sampler)
        return match(tree, choices)

    def choose(self, row, tree, node, answers, sampler):
        return sampler.choose(row, path_tokens(tree, node, answers), answers.prompt_len)


class CommittedOnly(Shaping):
    """All nodes shaped by the committed tokens [R35]: what was drafted before them is not counted."""

    def choose(self, row, tree, node, answers, sampler):
        return sampler.choose(row, answers.token_ids, answers.prompt_len)


class ExtraTokenOnly(Shaping):
    """Options applied to leaves alone, raw draws at the nodes that are checked [R39]."""

    def choose(self, row, tree, node, answers, sampler):
        if tree.children[node]:
            return replace(sampler, processor=None).choose(row, path_tokens(tree, node, answers), answers.prompt_len)
        return super().choose(row, tree, node, answers, sampler)


class LastOfEachStep(Shaping):
    """Only every other drafted token enters the history, as if a step counted its last one [R35]."""

    def choose(self, row, tree, node, answers, sampler):
        tokens = path_tokens(tree, node, answers)
        new = tokens[answers.prompt_len :]
        return sampler.choose(row, [*tokens[: answers.prompt_len], *new[::2]], answers.prompt_len)


def is_right(verifier, params: SamplingParams, drafter: str = "always-right-4") -> bool:
    answers = {tuple(p): plain_answer(DECODER, p, replace(params, max_tokens=40)).token_ids for p in PROMPTS}
    engine = make_engine(DECODER, ScriptedDrafter(drafter, SCRIPTS[drafter], answers, 12), verifier=verifier)
    requests = run(engine, PROMPTS, [params] * 3)
    return all(r.new_ids == answers[tuple(p)][:24] for r, p in zip(requests, PROMPTS, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_without_a_defect_it_is_right(options):
    assert is_right(Shaping(), OPTIONS[options])
    assert is_right(Matching(), OPTIONS[options])


@pytest.mark.parametrize(
    ("defect", "options"),
    [
        (CommittedOnly, "frequency"),
        (CommittedOnly, "bad words"),
        (ExtraTokenOnly, "bias"),
        (ExtraTokenOnly, "frequency"),
        (LastOfEachStep, "frequency"),
        (LastOfEachStep, "bad words"),
    ],
)
def test_a_planted_defect_is_caught(defect, options):
    assert not is_right(defect(), OPTIONS[options])
