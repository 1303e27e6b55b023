"""Drafters that are right or wrong on purpose. They know the plain answer, so every split point of a draft can be forced."""

from collections.abc import Callable, Sequence

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.tree.draft_tree import DraftTree

Script = Callable[[Sequence[int], int, int], DraftTree | list[int]]


class ScriptedDrafter(BaseDrafter):
    """Drafts what `script(answer_to_come, step, vocab_size)` says: a list of tokens (a chain) or (token, parent) pairs.

    `answers` maps each prompt (as a tuple) to the tokens that plain decoding gives for it.
    """

    def __init__(
        self, name: str, script: Callable[..., list], answers: dict[tuple[int, ...], list[int]], vocab_size: int
    ) -> None:
        self.name, self.script, self.answers, self.vocab_size = name, script, answers, vocab_size
        self.steps: dict[int, int] = {}

    def start(self, request: RequestView) -> None:
        self.steps[request.request_id] = 0

    def stop(self, request: RequestView) -> None:
        del self.steps[request.request_id]

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        known = known_ids(request, plan)
        if plan.num_nodes == 0:
            return DraftTree.chain(known)
        answer = self.answers[tuple(request.token_ids[: request.prompt_len])]
        done = len(request.token_ids) - request.prompt_len
        step = self.steps[request.request_id]
        self.steps[request.request_id] += 1
        guesses = self.script(answer[done:], step, self.vocab_size)
        if guesses and isinstance(guesses[0], tuple):
            offset = len(known) - 1
            tree = DraftTree(
                [*known, *(t for t, _ in guesses)],
                [*range(-1, len(known) - 1), *(p + offset for _, p in guesses)],
                len(known),
            )
            tree = tree.pruned(offset + plan.depth)
        else:
            tree = DraftTree.chain(known, guesses[: plan.depth])
        tree.check(self.vocab_size)
        return tree


def wrong(token: int, vocab_size: int, by: int = 1) -> int:
    return (token + by) % vocab_size


def always_right(k: int):
    return lambda answer, step, vocab: answer[:k]


def always_wrong(k: int):
    return lambda answer, step, vocab: [wrong(t, vocab) for t in answer[:k]]


def right_until(depth: int, k: int):
    return lambda answer, step, vocab: [t if i < depth else wrong(t, vocab) for i, t in enumerate(answer[:k])]


def bursts(*sizes: int):
    """Zero-draft steps between accepted blocks, partly accepted ones, one long burst."""

    def script(answer, step, vocab):
        size = sizes[step % len(sizes)]
        return [t if i < size - 1 or step % 2 else wrong(t, vocab) for i, t in enumerate(answer[:size])]

    return script


def bushy(depth: int):
    """A tree: at every depth the right token between two wrong siblings, and wrong subtrees that go on like the right one."""

    def script(answer, step, vocab):
        nodes: list[tuple[int, int]] = []
        parent = 0
        for i, token in enumerate(answer[:depth]):
            siblings = [wrong(token, vocab, 1), token, wrong(token, vocab, 2)]
            if (i + step) % 4 == 3:
                siblings.remove(token)  # the right branch ends here
            children = []
            for sibling in siblings:
                nodes.append((sibling, parent))
                children.append(len(nodes))
            if i + 1 < len(answer):
                nodes.append((answer[i + 1], children[0]))  # under a wrong sibling, what would be right a row later
            if token not in siblings:
                break
            parent = children[siblings.index(token)]
        return nodes

    return script


SCRIPTS = {
    "always-right-1": always_right(1),
    "always-right-4": always_right(4),
    "always-right-16": always_right(16),
    "always-wrong-4": always_wrong(4),
    "right-until-1": right_until(1, 4),
    "right-until-2": right_until(2, 4),
    "right-until-3": right_until(3, 8),
    "bursts": bursts(3, 0, 2, 0, 0, 48),
    "bushy": bushy(4),
}
