"""Small random models in exact rationals, and the law of production code added up over everything it may decide."""

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import torch

from foreword.sampling.params import Warp
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Answers, open_nodes
from foreword.verify.oracle import prefix_of

VOCAB = 3
ROOT_TEXT = [0]  # what stands before the first token in these models: the root alone


def random_model(seed, zeros: bool, vocab_size: int = VOCAB):
    """Context-dependent rows of small fractions; with `zeros` some tokens are impossible."""
    rows = {}

    def model(prefix):
        if prefix not in rows:
            rng = random.Random(f"{seed}/{prefix}")
            weights = [rng.randint(0 if zeros else 1, 4) for _ in range(vocab_size)]
            weights[rng.randrange(vocab_size)] += 1
            rows[prefix] = [Fraction(w, sum(weights)) for w in weights]
        return rows[prefix]

    return model


def constant(*probs):
    """A model that says the same whatever stands before."""
    row = [Fraction(p).limit_denominator(1000) for p in probs]
    return lambda prefix: row


def mean_model(*models):
    """The average of models: a drafter close to a target, when one of them is the target."""
    return lambda prefix: [
        sum(column, Fraction(0)) / len(models) for column in zip(*(m(prefix) for m in models), strict=True)
    ]


def logits_of(row) -> torch.Tensor:
    """Logits whose softmax is `row`; -inf for what is impossible."""
    return torch.tensor([math.log(p) if p else -math.inf for p in row], dtype=torch.float32)


def as_tensors(tree: DraftTree) -> DraftTree:
    """The same tree with its draft rows as production takes them."""
    rows = tree.draft_probs
    if rows is not None:
        rows = [None if row is None else torch.tensor([float(p) for p in row], dtype=torch.float64) for row in rows]
    return DraftTree(tree.token_ids, tree.parents, tree.num_known, tree.accept_probs, rows, tree.shape_is_fixed)


def answers_for(tree: DraftTree, logits_after: Callable[[tuple], torch.Tensor], choices=None) -> Answers:
    """What a pass would say about a tree whose root stands alone."""
    rows = torch.stack([logits_after(prefix_of(tree, node)) for node in open_nodes(tree)])
    return Answers(choices or {}, rows, ROOT_TEXT, 1, 0)


class Scripted:
    """`Chance` that follows a script of decisions and adds up the probability of its own story."""

    def __init__(self, script):
        self.script, self.options, self.prob = list(script), [], 1.0

    def accepts(self, node, prob):
        prob = min(max(prob, 0.0), 1.0)
        return bool(self._choose([1.0 - prob, prob]))

    def draw(self, node, weights):
        return self._choose((weights / weights.sum()).tolist())

    def _choose(self, probs):
        step = len(self.options)
        if step == len(self.script):
            self.script.append(next(i for i, p in enumerate(probs) if p > 0))
        self.options.append(probs)
        self.prob *= probs[self.script[step]]
        return self.script[step]

    def next_script(self):
        """The next story in order, or None after the last."""
        for step in reversed(range(len(self.script))):
            for later in range(self.script[step] + 1, len(self.options[step])):
                if self.options[step][later] > 0:
                    return [*self.script[:step], later]
        return None


def stories(decide: Callable[[Scripted], object]) -> Iterator[tuple[object, float]]:
    """Every result of code that asks a `Chance`, with its probability."""
    script = []
    while script is not None:
        chance = Scripted(script)
        yield decide(chance), chance.prob
        script = chance.next_script()


def production_law(make_rule, trees, logits_after, length: int, warp: Warp | None = None, processor=None) -> dict:
    """The law of `length` tokens of `make_rule(chance)`'s verdicts, floats; the target's own rows go on from there.

    `logits_after(prefix)` is the target; `warp` and `processor` are the request's. Every decision is enumerated, none sampled.
    """
    sampler = Sampler(warp or Warp(1.0), seed=0, processor=processor)
    plain = plain_model(logits_after, sampler)
    law: dict = {}
    for tree, weight in trees:
        made = as_tensors(tree)
        answers = answers_for(made, logits_after)
        for verdict, prob in stories(lambda chance, t=made, a=answers: make_rule(chance).decide(t, a, sampler)):
            _go_on(law, verdict.emitted, float(weight) * prob, plain, length)
    return law


def plain_model(logits_after, sampler: Sampler):
    """The target's rows after warp and processor, worked out anew in float64 and without the code under test."""
    cache = {}

    def model(prefix):
        if prefix not in cache:
            logits = sampler.shape(logits_after(prefix), [*ROOT_TEXT, *prefix], 1).double()
            assert not sampler.warp.truncates, "only temperature is written out here"
            cache[prefix] = torch.softmax(logits / sampler.warp.temperature, -1).tolist()
        return cache[prefix]

    return model


def plain_law(logits_after, length: int, warp: Warp | None = None, processor=None) -> dict:
    """The law of `length` tokens of plain sampling, floats."""
    law: dict = {}
    _go_on(law, (), 1.0, plain_model(logits_after, Sampler(warp or Warp(1.0), seed=0, processor=processor)), length)
    return law


def distance(one: dict, other: dict) -> float:
    """Largest difference between two laws."""
    return max(abs(float(one.get(key, 0)) - float(other.get(key, 0))) for key in one.keys() | other.keys())


def _go_on(law, prefix, mass, model, length):
    if len(prefix) >= length:
        law[prefix[:length]] = law.get(prefix[:length], 0.0) + mass
        return
    for token, prob in enumerate(model(prefix)):
        if prob:
            _go_on(law, (*prefix, token), mass * prob, model, length)
