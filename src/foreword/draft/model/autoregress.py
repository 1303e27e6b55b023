"""Drafting token after token with a small decoder: chains, or trees grown by confidence, for many requests at once.

Who reads for the drafter, a decoder with a cache of its own or the target's first layers, is a `DraftReader`; the
rest is the same for both. One draft pass a depth serves all requests; each stops at its own plan, room or lack of
confidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from foreword.draft.base import Plan, RequestView, known_ids
from foreword.draft.model.guesser import Guesser, Guesses, Spot
from foreword.runtime.base import Chains, ChainStep, Need, PassOutput
from foreword.sampling.draft_sampling import DraftMode
from foreword.tree.draft_tree import DraftTree
from foreword.tree.grow import TreeGrowth


class DraftReader(Protocol):
    """Reads tokens for a drafter and remembers them for the rest of a proposal."""

    def room(self, request: RequestView) -> int:
        """How many tokens may be drafted for a request now; 0 where its text cannot be read."""
        ...

    def unread(self, request: RequestView) -> list[int]:
        """The tokens up to the root that must be read before anything can be drafted; never empty, the root is last."""
        ...

    def run(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        keep: Sequence[Sequence[int]],
        need: Need,
    ) -> PassOutput:
        """One pass over one tree per request, after what was kept so far; keeps the rows `keep` of each."""
        ...

    def finish(self, requests: Sequence[RequestView]) -> None:
        """The proposals are made."""
        ...

    @property
    def rolls_out(self) -> bool:
        """Whether `roll_out` can be asked: all passes of chains as one call."""
        ...

    def roll_out(self, requests: Sequence[RequestView], chains: Chains) -> list[list[ChainStep]]:
        """Continue chains from the last pass's candidates; slots and what is carried are the reader's to fill in."""
        ...


_COMB_NODES = 9  # of trees that are small enough to be grown as combs
_Place = tuple[int, list[int], int]  # node of the tree being read, drafted path to it, its number in the proposal


@dataclass(eq=False)
class _Job:
    """One request's proposal in the making."""

    request: RequestView
    index: int
    known: Sequence[int]
    num_nodes: int
    depth: int
    growth: TreeGrowth
    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    rows: list[Tensor | None] = field(default_factory=list)
    is_done: bool = False
    is_comb: bool = False  # all guesses of a step go into `growth`, beside the chain that goes on from the first
    tip: int = -1  # then: the chain's last node in it

    def extend(self, guesses: Guesses, threshold: float) -> None:
        """Add the first candidate to the chain; end it where there is none, or none above the threshold."""
        if not guesses.token_ids:
            self.is_done = True
            return
        if self.is_comb:
            tip, self.tip = self.tip, len(self.growth.token_ids)
            self.growth.add(tip, guesses.token_ids, [math.log(p) for p in guesses.probs])
        self.token_ids.append(guesses.token_ids[0])
        self.probs.append(guesses.probs[0] * (self.probs[-1] if self.probs else 1.0))
        self.rows.append(guesses.row)
        self.is_done = guesses.probs[0] < threshold or len(self.token_ids) == self.depth

    def end(self, tree: DraftTree) -> _Place:
        """Where the chain continues: the last node of what is read."""
        return tree.num_nodes - 1, self.token_ids, len(self.known) - 1 + len(self.token_ids)

    def chain(self) -> DraftTree:
        """The chain as a proposal."""
        tree = DraftTree.chain(self.known, self.token_ids)
        has_rows = any(row is not None for row in self.rows)
        return DraftTree(
            tree.token_ids,
            tree.parents,
            tree.num_known,
            [*[1.0] * len(self.known), *self.probs],
            [*[None] * len(self.known), *self.rows] if has_rows else None,
        )


class Autoregression:
    """Proposes with whatever `reader` reads.

    Args:
        reader: who reads.
        guesser: which tokens follow.
        width: candidates per level; 1 drafts chains. Verifiers that compare distributions get chains, whatever the width.
        threshold: a chain ends after a token whose draft probability is below it.
        tree_depth: most tokens in a row; as many as the plan has nodes unless given.
        new_growth: how trees grow, by nodes and depth; by confidence unless given.
    """

    def __init__(
        self,
        reader: DraftReader,
        guesser: Guesser,
        width: int = 1,
        threshold: float = 0.0,
        tree_depth: int | None = None,
        new_growth: Callable[[int, int], TreeGrowth] | None = None,
    ) -> None:
        self.reader, self.guesser, self.threshold = reader, guesser, threshold
        self.width = 1 if guesser.mode is DraftMode.OWN else width
        self.tree_depth = tree_depth
        self._new_growth = new_growth

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request; only the committed tokens where nothing may be drafted."""
        trees = [DraftTree.chain(known_ids(r, plan)) for r, plan in zip(requests, plans, strict=True)]
        jobs = [
            job
            for index, (request, plan) in enumerate(zip(requests, plans, strict=True))
            if (job := self._job(index, request, plan, trees[index].token_ids)) is not None
        ]
        if jobs:
            are_combs = self._are_combs(jobs)
            for job in jobs:
                job.is_comb = are_combs
            (self._grow_chains if self.width == 1 or are_combs else self._grow_trees)(jobs)
            self.reader.finish([job.request for job in jobs])
        for job in jobs:
            trees[job.index] = job.chain() if self.width == 1 else job.growth.best(job.known, job.num_nodes)
        return trees

    def _job(self, index: int, request: RequestView, plan: Plan, known: Sequence[int]) -> _Job | None:
        all_known = request.kv_len + plan.num_known == len(request.token_ids)
        if plan.num_nodes == 0 or plan.depth == 0 or not all_known:
            return None
        depth = min(plan.depth, plan.num_nodes, self.reader.room(request))
        depth = depth if self.tree_depth is None else min(depth, self.tree_depth)
        if depth <= 0:
            return None
        growth = TreeGrowth() if self._new_growth is None else self._new_growth(plan.num_nodes, depth)
        return _Job(request, index, known, plan.num_nodes, depth, growth)

    def _grow_chains(self, jobs: list[_Job]) -> None:
        feeds = [self.reader.unread(job.request) for job in jobs]
        while jobs and not self._rolled_out(jobs):
            trees = [DraftTree.chain(feed) for feed in feeds]
            spots = _spots(jobs, trees, [[job.end(tree)] for job, tree in zip(jobs, trees, strict=True)])
            keep = [range(tree.num_nodes) for tree in trees]
            for job, guesses in zip(jobs, self._guess(jobs, trees, keep, spots), strict=True):
                job.extend(guesses, self.threshold)
            jobs = [job for job in jobs if not job.is_done]
            feeds = [job.token_ids[-1:] for job in jobs]

    def _are_combs(self, jobs: list[_Job]) -> bool:
        """Whether trees are grown along their most probable chain alone, as candidates beside each of its tokens.

        That loses 1 or 2 % of the tokens of a small tree, and is drafted in one call.
        """
        if self.width == 1 or self._new_growth is not None or not self.reader.rolls_out:
            return False
        return all(
            min(job.num_nodes, self.width * job.depth) <= _COMB_NODES
            and job.request.sampler.warp.is_greedy
            and self.guesser.chain_draws(job.request, (), 1)
            for job in jobs
        )

    def _rolled_out(self, jobs: list[_Job]) -> bool:
        """Whether the rest of the chains could be drafted in one call; it is, then."""
        if not self.reader.rolls_out or not jobs[0].token_ids:
            return False
        draws = [self.guesser.chain_draws(job.request, job.token_ids, job.depth) for job in jobs]
        if not all(draws):
            return False
        last = [job.token_ids[-1] for job in jobs]
        chains = Chains(last, draws, self.guesser.names, self.threshold, self.guesser.num_candidates(self.width))
        for job, chain in zip(jobs, self.reader.roll_out([job.request for job in jobs], chains), strict=True):
            for step in chain:
                if not job.is_done:  # a chance just at the threshold
                    token_ids = step.top_ids if job.is_comb else [step.token_id]
                    job.extend(self.guesser.checked(token_ids, step.top_probs), self.threshold)
        return True

    def _grow_trees(self, jobs: list[_Job]) -> None:
        trees = [DraftTree.chain(self.reader.unread(job.request)) for job in jobs]
        spots = _spots(jobs, trees, [[(tree.num_nodes - 1, [], -1)] for tree in trees])
        keep = [range(tree.num_nodes - 1) for tree in trees]  # the root stays in the tree that is grown
        level = 1
        while True:
            found = iter(self._guess(jobs, trees, keep, spots))
            for job, own in zip(jobs, _by_job(jobs, spots), strict=True):
                for spot in own:
                    guesses = next(found)
                    job.growth.add(spot.tree_node, guesses.token_ids, [math.log(p) for p in guesses.probs])
            level += 1
            jobs = [job for job in jobs if job.depth >= level and job.growth.advance(self.width)]
            if not jobs:
                return
            read = [job.growth.read_tree(job.request.token_ids[-1]) for job in jobs]
            trees = [tree for tree, _ in read]
            keep = [() for _ in jobs]
            spots = _spots(jobs, trees, [_frontier(job, nodes) for job, (_, nodes) in zip(jobs, read, strict=True)])

    def _guess(
        self, jobs: list[_Job], trees: list[DraftTree], keep: Sequence[Sequence[int]], spots: list[Spot]
    ) -> list[Guesses]:
        output = self.reader.run([job.request for job in jobs], trees, keep, self.guesser.need(spots, self.width))
        return self.guesser.guesses(output, spots, self.width)


def _frontier(job: _Job, nodes: list[int]) -> list[_Place]:
    """Where a tree continues."""
    growth = job.growth
    return [(node, growth.path_tokens(grown), grown) for node, grown in zip(nodes, growth.frontier, strict=True)]


def _spots(jobs: list[_Job], trees: list[DraftTree], wanted: list[list[_Place]]) -> list[Spot]:
    """Spots of a pass over `trees`, by the places wanted of each request's tree."""
    spots, first = [], 0
    for job, tree, nodes in zip(jobs, trees, wanted, strict=True):
        spots.extend(Spot(job.request, first + node, path, tree_node) for node, path, tree_node in nodes)
        first += tree.num_nodes
    return spots


def _by_job(jobs: list[_Job], spots: list[Spot]) -> list[list[Spot]]:
    return [[spot for spot in spots if spot.request is job.request] for job in jobs]
