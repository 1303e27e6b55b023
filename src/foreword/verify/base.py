"""The interface of verifiers, and their registry."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError, UnknownNameError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.sampler import Draw, Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.match import known_only, match
from foreword.verify.verdict import Verdict


@dataclass(frozen=True)
class Ask:
    """What a verifier must be told about one request's nodes, by index in the packed batch."""

    draws: Sequence[Draw] = ()
    logits: Sequence[int] = ()


@dataclass(frozen=True)
class Answers:
    """The pass's output for one request's nodes, and the tokens before them."""

    choices: Mapping[int, int]  # sampled token by node of the tree
    logits: Float[Tensor, "wanted vocab"] | None  # in the order asked for
    token_ids: Sequence[int]  # prompt and answer up to the last committed node, which is included
    prompt_len: int
    step: int  # passes of this request so far: rules that may not reuse noise key it by this


@runtime_checkable
class Verifier(Protocol):
    """Decides which nodes of a tree the target agrees with."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def is_lossless(self) -> bool:
        """Whether the output has the target's distribution."""
        ...

    @property
    def draft_mode(self) -> DraftMode:
        """Which noise drafters that draw at random should use; OWN wants `draft_probs` with the tree."""
        ...

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """What the verifier needs from the pass. The tree's node 0 is the batch's `first_node`."""
        ...

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """The verdict, from the answers."""
        ...


@dataclass(frozen=True)
class Matching:
    """Sample and match with position-keyed noise (`verify.match`): the tokens of plain decoding."""

    name: str = "match"
    is_lossless: bool = True
    draft_mode: DraftMode = DraftMode.SHARED

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """The sampled token at the last committed token and at every drafted node; their logits where logits processors need history."""
        if sampler.processor is not None:
            return Ask(logits=[first_node + n for n in open_nodes(tree)])
        return Ask(draws=[sampler.draw_after(first_node + n, kv_len + tree.depths[n]) for n in open_nodes(tree)])

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """Follow the target's own draws."""
        if sampler.processor is None:
            return match(tree, answers.choices)
        return match(tree, ShapedChoices(tree, answers, sampler))


class ShapedChoices(Mapping[int, int]):
    """The token sampled at each node, after logits processors on its own path; computed only for nodes that the walk visits."""

    def __init__(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> None:
        assert answers.logits is not None, "shaped choices need logits"
        self.tree, self.answers, self.sampler = tree, answers, sampler

    def __getitem__(self, node: int) -> int:
        logits = self.answers.logits
        assert logits is not None
        row = logits[node - self.tree.num_known + 1]
        return self.sampler.choose(row, path_tokens(self.tree, node, self.answers), self.answers.prompt_len)

    def __iter__(self) -> Iterator[int]:
        return iter(open_nodes(self.tree))

    def __len__(self) -> int:
        return len(open_nodes(self.tree))


def open_nodes(tree: DraftTree) -> range:
    """The nodes after which a token must be decided: the last committed one and all drafted ones."""
    return range(tree.num_known - 1, tree.num_nodes)


def path_tokens(tree: DraftTree, node: int, answers: Answers) -> list[int]:
    """All tokens before the token after `node`: prompt, answer, and the node's own path."""
    drafted = [tree.token_ids[n] for n in tree.path_to(node) if n >= tree.num_known]
    return [*answers.token_ids, *drafted]


def make() -> Matching:
    """For the registry."""
    return Matching()


# A verifier's module has a `make` function. All but "typical" are lossless; "match" alone keeps plain decoding's tokens.
VERIFIERS: dict[str, str] = {
    "match": "foreword.verify.base",
    "rejection": "foreword.verify.rejection",
    "block": "foreword.verify.block",
    "typical": "foreword.verify.typical",
}


def make_verifier(verifier: str | Verifier) -> Verifier:
    """The verifier of that name (its module is imported now), or the object itself; the error for an unknown name lists all."""
    if not isinstance(verifier, str):
        if not isinstance(verifier, Verifier):
            raise ConfigError(
                f"verifier is {verifier!r}; allowed: a name ({', '.join(VERIFIERS)}) or an object with what "
                f"foreword.verify.base.Verifier asks for"
            )
        return verifier
    if verifier not in VERIFIERS:
        raise UnknownNameError("verifier", verifier, VERIFIERS)
    return import_module(VERIFIERS[verifier]).make()


__all__ = [
    "VERIFIERS",
    "Answers",
    "Ask",
    "Matching",
    "Verifier",
    "known_only",
    "make",
    "make_verifier",
    "open_nodes",
    "path_tokens",
]
