"""Lookahead decoding: the target solves for several future tokens at once and remembers the n-grams it finds [fu24].

    columns    0     1     2           each column j carries N - 1 guesses of ever later tokens: level l of column j is
    level 0    r ─── a ─── b           the token at position root + l + j, as it looked l passes after it was first
    tried level 1    c     d     e           (0, j) hangs off (0, j - 1), (l, j) off (l - 1, j): the window is a tree
    argmax     f     g     h           what the target says after the last level is the next level's column

In every pass the window moves up by a level: a Jacobi iteration on all columns, by the target's plain argmax, also
when sampling. Column j yields an n-gram of N tokens, (0, j) .. (N - 2, j) and the argmax. The pool keeps the last G
n-grams for each first token; those that begin with the root are tried as chains beside the window. Window and guesses
that agree share nodes.

The window costs W (N - 1) - 1 nodes per pass. A plan too small for it gets candidate n-grams alone, and the window is not advanced.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.draft.base import BaseDrafter, DraftNeed, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.errors import ConfigError
from foreword.runtime.base import PassOutput
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.merge import locate
from foreword.tree.pack import PackedBatch
from foreword.verify.verdict import Verdict

_GUESS_PROB = 0.3  # chance that a guess's next token is right, measured on SmolLM2-135M-Instruct
_STRIDE = 7919  # a prime, to pick tokens from all over the prompt


@dataclass(frozen=True, kw_only=True)
class LookaheadOptions(DrafterOptions):
    """Sizes of the window and of the pool."""

    lookahead_window: int = option(2, "columns of the window (W)", lowest=1, highest=MAX_SPECULATIVE_TOKENS)
    lookahead_ngram: int = option(3, "tokens of an n-gram (N)", lowest=2, highest=MAX_SPECULATIVE_TOKENS)
    lookahead_guesses: int = option(
        5, "n-grams kept and tried for each token (G)", lowest=1, highest=MAX_SPECULATIVE_TOKENS
    )
    lookahead_pool_from_prompt: bool = option(True, "begin with the prompt's n-grams")

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes = self.lookahead_window * (self.lookahead_ngram - 1) - 1
        if nodes > MAX_SPECULATIVE_TOKENS:
            raise ConfigError(
                f"lookahead_window is {self.lookahead_window} and lookahead_ngram {self.lookahead_ngram}, which makes a window of "
                f"{nodes} nodes; allowed: W (N - 1) - 1 of at most {MAX_SPECULATIVE_TOKENS}, the most that a step drafts"
            )


class NgramPool:
    """For each token, the last `max_guesses` continuations seen after it, each of N - 1 tokens."""

    def __init__(self, max_guesses: int) -> None:
        self._max_guesses = max_guesses
        self._by_token: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, token: int, continuation: tuple[int, ...]) -> None:
        """Remember a continuation as the newest; the oldest leaves where there are too many."""
        continuations = self._by_token.setdefault(token, OrderedDict())
        continuations[continuation] = None
        continuations.move_to_end(continuation)
        if len(continuations) > self._max_guesses:
            continuations.popitem(last=False)

    def guesses(self, token: int) -> list[tuple[int, ...]]:
        """Continuations of a token, the newest first."""
        return list(reversed(self._by_token.get(token, ())))


@dataclass(eq=False)
class _State:
    """One request's window and pool."""

    pool: NgramPool
    levels: list[list[int]]  # levels[l][j]; levels[0][0] is not used: the root stands there
    num_moves: int = 0
    num_pooled: int = 0  # leading tokens of the text whose n-grams are in the pool
    tree: DraftTree | None = None  # the last proposal, where it holds the window
    window: list[list[int]] = field(default_factory=list)  # node of each (level, column) in it


@final
class LookaheadDrafter(BaseDrafter):
    """Window and candidate n-grams in one tree; deterministic.

    Args:
        window: columns (W).
        ngram: tokens of an n-gram (N).
        max_guesses: n-grams kept and tried for each token (G).
        pool_from_text: take n-grams from the prompt and the answer too.
    """

    name = "lookahead"
    need = DraftNeed(top_k=1, top_of_known=False)

    def __init__(self, window: int, ngram: int, max_guesses: int, pool_from_text: bool = True) -> None:
        self.width, self.num_levels, self.max_guesses = window, ngram - 1, max_guesses
        self.pool_from_text = pool_from_text
        self._states: dict[int, _State] = {}

    @property
    def num_window_nodes(self) -> int:
        """Drafted nodes of the window, if none of them coincide."""
        return self.width * self.num_levels - 1

    def start(self, request: RequestView) -> None:
        """A window of tokens from all over the prompt, and an empty pool."""
        prompt = request.token_ids
        levels = [
            [prompt[(level * self.width + column) * _STRIDE % len(prompt)] for column in range(self.width)]
            for level in range(self.num_levels)
        ]
        self._states[request.request_id] = _State(NgramPool(self.max_guesses), levels)

    def stop(self, request: RequestView) -> None:
        """Forget both."""
        self._states.pop(request.request_id, None)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """The whole window, where it fits, and as many candidate n-grams as fit beside it."""
        return [self._tree(r, plan, self._states[r.request_id]) for r, plan in zip(requests, plans, strict=True)]

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Move the windows that were read."""
        if all(self._states[request.request_id].tree is None for request in requests):
            return
        assert output.top_ids is not None, "the pass returned no top-k tokens"
        nodes = self.need.top_nodes(trees, batch.starts)
        likeliest = dict(zip(nodes, output.top_ids[:, 0].tolist(), strict=True))
        for request, tree, start in zip(requests, trees, batch.starts, strict=False):
            state = self._states[request.request_id]
            if state.tree is not None:
                places = locate(state.tree, tree)  # a grammar may have taken nodes out
                last_level = [places[node] for node in state.window[-1]]
                if min(last_level) >= 0:
                    root = tree.token_ids[places[state.window[0][0]]]
                    self._move(state, root, [likeliest[start + node] for node in last_level])
                state.tree = None

    def _tree(self, request: RequestView, plan: Plan, state: _State) -> DraftTree:
        known = known_ids(request, plan)
        builder = _Builder(known, plan.depth)
        if plan.num_nodes > 0 and plan.depth > 0:
            if self.pool_from_text:
                self._pool_text(state, request.token_ids)
            fits = self.num_window_nodes <= plan.num_nodes and self.width + self.num_levels - 2 <= plan.depth
            state.window = builder.add_window(state.levels) if fits else []
            for guess in state.pool.guesses(known[-1]):
                builder.add_chain(guess, plan.num_nodes)
            tree = builder.tree()
            state.tree = tree if fits else None
            return tree
        return builder.tree()

    def _move(self, state: _State, root: int, newest: list[int]) -> None:
        """Take the n-grams of all columns and move every level up by one."""
        levels = state.levels
        levels[0][0] = root
        state.num_moves += 1
        if state.num_moves >= self.num_levels:  # before, the first levels are still the tokens it began with
            for column in range(self.width):
                continuation = tuple(level[column] for level in levels[1:])
                state.pool.add(levels[0][column], (*continuation, newest[column]))
        state.levels = [*levels[1:], newest]

    def _pool_text(self, state: _State, token_ids: Sequence[int]) -> None:
        """The n-grams of the text so far."""
        for start in range(state.num_pooled, len(token_ids) - self.num_levels):
            state.pool.add(token_ids[start], tuple(token_ids[start + 1 : start + 1 + self.num_levels]))
            state.num_pooled = start + 1


class _Builder:
    """A tree in the making; equal siblings are one node."""

    def __init__(self, known: Sequence[int], max_depth: int) -> None:
        self.num_known, self.max_depth = len(known), max_depth
        self.token_ids = list(known)
        self.parents = list(range(-1, len(known) - 1))
        self.probs = [1.0] * len(known)
        self._children: list[dict[int, int]] = [{} for _ in known]

    @property
    def num_drafted(self) -> int:
        return len(self.token_ids) - self.num_known

    def child(self, parent: int, token: int) -> int:
        """The child of this token, made if there is none."""
        node = self._children[parent].get(token)
        if node is None:
            node = self._children[parent][token] = len(self.token_ids)
            self.token_ids.append(token)
            self.parents.append(parent)
            self.probs.append(0.0)  # a window is there to be read, not to be right
            self._children.append({})
        return node

    def add_window(self, levels: list[list[int]]) -> list[list[int]]:
        """The node of each (level, column)."""
        nodes = [[self.num_known - 1]]
        for token in levels[0][1:]:
            nodes[0].append(self.child(nodes[0][-1], token))
        for level in levels[1:]:
            nodes.append([self.child(above, token) for above, token in zip(nodes[-1], level, strict=True)])
        return nodes

    def add_chain(self, tokens: tuple[int, ...], max_drafted: int) -> None:
        """A candidate n-gram, as far as depth and number of nodes allow."""
        node, prob = self.num_known - 1, 1.0
        for token in tokens[: self.max_depth]:
            if self.num_drafted >= max_drafted and token not in self._children[node]:
                return
            node = self.child(node, token)
            prob *= _GUESS_PROB
            self.probs[node] = max(self.probs[node], prob)

    def tree(self) -> DraftTree:
        return DraftTree(self.token_ids, self.parents, self.num_known, self.probs)


def make(settings: DrafterSettings, target: Target) -> LookaheadDrafter:
    """Needs nothing of the target."""
    options: LookaheadOptions = settings.options
    return LookaheadDrafter(
        options.lookahead_window,
        options.lookahead_ngram,
        options.lookahead_guesses,
        options.lookahead_pool_from_prompt,
    )


LOOKAHEAD = DrafterType(
    name="lookahead",
    summary="Lookahead decoding: solves for several future tokens in parallel (Jacobi iteration) and keeps the n-grams it finds",
    fits="machines with arithmetic to spare",
    make=make,
    options=LookaheadOptions,
)
