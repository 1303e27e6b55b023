"""A wrong acceptance rule, planted by `foreword demo --break` to show that the check sees it."""

from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Answers, Matching
from foreword.verify.verdict import Verdict


class AcceptEverything(Matching):
    """Accepts the whole draft: fast, and no longer the model's own output."""

    def __init__(self) -> None:
        super().__init__(name="accept everything", is_lossless=False)

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """The path to the deepest node, whatever the target would have said."""
        deepest = max(range(tree.num_known - 1, tree.num_nodes), key=lambda node: tree.depths[node])
        path = tree.path_to(deepest)
        accepted = tuple(tree.token_ids[node] for node in path[tree.num_known :])
        return Verdict(tuple(path), accepted, answers.choices[deepest])
