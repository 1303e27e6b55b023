"""What every verification rule offers, and how each is found by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from foreword.errors import UnknownNameError
from foreword.sampling.sampler import Draw, Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.match import known_only, match
from foreword.verify.verdict import Verdict


@dataclass(frozen=True)
class Ask:
    """What a verifier must be told about one request's nodes, by index in the packed batch."""

    draws: Sequence[Draw] = ()
    logits: Sequence[int] = ()


@runtime_checkable
class Verifier(Protocol):
    """Decides which nodes of a tree the target agrees with."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def is_lossless(self) -> bool:
        """Whether the output's law is the target's."""
        ...

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """What to ask of the pass. The tree's node 0 is the batch's `first_node`."""
        ...

    def decide(self, tree: DraftTree, choices: Mapping[int, int], logits: Tensor | None, sampler: Sampler) -> Verdict:
        """The verdict, from the answers: `choices` by node of the tree, logit rows in the order asked for."""
        ...


@dataclass(frozen=True)
class Matching:
    """Sample and match with position-keyed noise (`verify.match`): the tokens of plain decoding."""

    name: str = "match"
    is_lossless: bool = True

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """The drawn token at the last known node and at every drafted one."""
        nodes = range(tree.num_known - 1, tree.num_nodes)
        return Ask(draws=[sampler.draw_after(first_node + n, kv_len + tree.depths[n]) for n in nodes])

    def decide(self, tree: DraftTree, choices: Mapping[int, int], logits: Tensor | None, sampler: Sampler) -> Verdict:
        """Follow the target's own draws."""
        return match(tree, choices)


VERIFIERS: dict[str, type] = {"match": Matching}


def make_verifier(name: str) -> Verifier:
    """The rule called `name`; `UnknownNameError` lists the names."""
    if name not in VERIFIERS:
        raise UnknownNameError("verifier", name, VERIFIERS)
    return VERIFIERS[name]()


__all__ = ["VERIFIERS", "Ask", "Matching", "Verifier", "known_only", "make_verifier"]
