"""Several drafters in turn: cheap ones first, dear ones only where those find nothing.

    suffix,draft_model           for each request the first proposal that is worth verifying: of enough expected accepted
    tokens the same, cascade_merge      all drafters propose, their trees are read together

Each drafter observes every pass as if its own proposal had been the whole of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch

from foreword.draft.base import BaseDrafter, Drafter, DraftNeed, Drawn, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.runtime.base import PassOutput
from foreword.tree.draft_tree import DraftTree
from foreword.tree.merge import expected_accepted, locate, merge
from foreword.tree.pack import PackedBatch
from foreword.verify.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class CascadeOptions(DrafterOptions):
    """How several drafters go together."""

    cascade_merge: bool = option(False, "merge the trees of all drafters; false: the first worthwhile one")
    cascade_threshold: float = option(
        0.5, "expected accepted tokens that make a proposal worthwhile, without merging", lowest=0, highest=1e6
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cascade_merge:
            self.refuse_idle("cascade_threshold", "cascade_merge asks all drafters, whatever they expect")


@final
class CascadeDrafter(BaseDrafter):
    """Drafters in the order in which they are called.

    Args:
        drafters: at least one, the cheapest first.
        threshold: expected accepted tokens that make a proposal worth taking without asking on.
        is_merging: ask all, and merge.
    """

    def __init__(self, drafters: Sequence[Drafter], threshold: float = 0.5, is_merging: bool = False) -> None:
        self.name = ",".join(drafter.name for drafter in drafters)
        self.drafters, self.threshold, self.is_merging = list(drafters), threshold, is_merging
        self.need = DraftNeed(
            taps=tuple(sorted({tap for drafter in drafters for tap in drafter.need.taps})),
            hidden=any(drafter.need.hidden for drafter in drafters),
            top_k=max(drafter.need.top_k for drafter in drafters),
            top_of_known=any(drafter.need.top_k > 0 and drafter.need.top_of_known for drafter in drafters),
            can_miss=all(drafter.need.can_miss or drafter.need == DraftNeed() for drafter in drafters),
        )
        # Merged proposals no longer say what their nodes were drawn from (`tree.merge`).
        self.drawn = Drawn.NOTHING if self.is_merging else max(drafter.drawn for drafter in drafters)
        self.uses_reference = any(drafter.uses_reference for drafter in drafters)
        self.default_num_nodes = max(drafter.default_num_nodes for drafter in drafters)
        self._learning = [  # from passes; the others need not look at them
            turn
            for turn, drafter in enumerate(drafters)
            if getattr(type(drafter), "observe", None) is not BaseDrafter.observe
        ]
        self._proposals: dict[int, list[DraftTree]] = {}  # by request: each drafter's own

    def start(self, request: RequestView) -> None:
        """All drafters begin."""
        for drafter in self.drafters:
            drafter.start(request)

    def stop(self, request: RequestView) -> None:
        """All drafters end."""
        self._proposals.pop(request.request_id, None)
        for drafter in self.drafters:
            drafter.stop(request)

    def close(self) -> None:
        """All drafters are done."""
        for drafter in self.drafters:
            drafter.close()

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """The first worthwhile proposal of each request, or all of them merged."""
        for request, plan in zip(requests, plans, strict=True):
            self._proposals[request.request_id] = [DraftTree.chain(known_ids(request, plan))] * len(self.drafters)
        open_indexes = [index for index, plan in enumerate(plans) if plan.num_nodes]
        for turn, drafter in enumerate(self.drafters):
            open_indexes = [i for i in open_indexes if plans[i].allows(turn)]
            if not open_indexes:
                break
            asked = [requests[i] for i in open_indexes]
            shares = [self._share(requests[i], plans[i], turn) for i in open_indexes]
            for request, tree in zip(asked, drafter.propose(asked, shares), strict=True):
                self._proposals[request.request_id][turn] = tree.named(drafter.name)
            open_indexes = [i for i in open_indexes if not self._is_settled(requests[i], turn)]
        return [self._chosen(request) for request in requests]

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Each drafter sees its own trees, and what became of them."""
        top_nodes = self.need.top_nodes(trees, batch.starts) if self._learning else []
        for turn in self._learning:
            drafter = self.drafters[turn]
            own_trees = [self._proposals[request.request_id][turn] for request in requests]
            if drafter.need.taps or drafter.need.hidden:  # features of all that was committed, whoever proposed it
                seen = _Share(trees, verdicts, batch, None)
            else:
                seen = _own_share(own_trees, trees, verdicts, batch)
            own_output = self._own_output(drafter, output, seen, top_nodes)
            drafter.observe(requests, seen.trees, seen.verdicts, seen.batch, own_output)

    def _share(self, request: RequestView, plan: Plan, turn: int) -> Plan:
        """What of the plan a drafter may use: all of it, or, merging, an equal part of what is left."""
        if not self.is_merging:
            return plan
        left = plan.num_nodes - sum(tree.num_drafted for tree in self._proposals[request.request_id])
        return replace(plan, num_nodes=left // ((plan.first_drafters or len(self.drafters)) - turn))

    def _is_settled(self, request: RequestView, turn: int) -> bool:
        """Whether no other drafter needs to be called.

        A proposal that was drawn at random is never passed over for what it drew: that would bend the law of what is
        left.
        """
        if self.is_merging:
            return False
        tree = self._proposals[request.request_id][turn]
        return tree.has_drawn_nodes or (tree.num_drafted > 0 and expected_accepted(tree) >= self.threshold)

    def _chosen(self, request: RequestView) -> DraftTree:
        proposals = self._proposals[request.request_id]
        if self.is_merging:
            return merge(proposals)
        for turn, tree in enumerate(proposals):
            if self._is_settled(request, turn):
                return tree
        for tree in reversed(proposals):
            if 0.0 in (tree.accept_probs or ())[tree.num_known :]:
                return tree  # it has nodes that are read for the drafter's own sake: passed over, it never learns
        return max(proposals, key=lambda tree: (expected_accepted(tree), tree.num_drafted > 0))  # the first of equals

    def _own_output(self, drafter: Drafter, output: PassOutput, seen: "_Share", top_nodes: Sequence[int]) -> PassOutput:
        """The part of a pass's output that a drafter asked for, on its own nodes; `top_nodes` the cascade asked for."""
        need, rows = drafter.need, seen.rows

        def own(tensor: torch.Tensor | None, rows: Sequence[int] | None = rows) -> torch.Tensor | None:
            return tensor if tensor is None or rows is None else tensor[torch.as_tensor(rows, device=tensor.device)]

        top_ids = top_logprobs = None
        if need.top_k:
            nodes = need.top_nodes(seen.trees, seen.batch.starts)
            nodes = nodes if rows is None else [rows[node] for node in nodes]
            row_of = {node: row for row, node in enumerate(top_nodes)}
            top_rows = None if nodes == top_nodes else [row_of[node] for node in nodes]
            top_ids, top_logprobs = own(output.top_ids, top_rows), own(output.top_logprobs, top_rows)
        taps = own(output.taps)
        if taps is not None and need.taps != self.need.taps:
            taps = taps[:, [self.need.taps.index(tap) for tap in need.taps]] if need.taps else None
        return PassOutput(
            top_ids=top_ids[:, : need.top_k] if top_ids is not None else None,
            top_logprobs=top_logprobs[:, : need.top_k] if top_logprobs is not None else None,
            taps=taps,
            hidden=own(output.hidden) if need.hidden else None,
        )


@dataclass(frozen=True, eq=False)
class _Share:
    """A pass as one drafter sees it. `rows` are its nodes in the whole batch; None for all of them."""

    trees: Sequence[DraftTree]
    verdicts: Sequence[Verdict]
    batch: PackedBatch
    rows: Sequence[int] | None


def _own_share(
    own_trees: Sequence[DraftTree], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], batch: PackedBatch
) -> _Share:
    if all(own is tree for own, tree in zip(own_trees, trees, strict=True)):
        return _Share(trees, verdicts, batch, None)
    seen_trees, seen_verdicts, rows, starts = [], [], [], [0]
    for own, tree, verdict, start in zip(own_trees, trees, verdicts, batch.starts, strict=False):
        places = locate(own, tree)
        read = [node for node, place in enumerate(places) if place >= 0]  # a grammar may have taken some out
        seen_trees.append(own if len(read) == own.num_nodes else own.subset(read))
        places = [places[node] for node in read]
        seen_verdicts.append(_own_verdict(seen_trees[-1], places, tree, verdict))
        rows.extend(start + place for place in places)
        starts.append(len(rows))
    return _Share(seen_trees, seen_verdicts, _picked(batch, seen_trees, rows, starts), rows)


def _own_verdict(own: DraftTree, places: Sequence[int], tree: DraftTree, verdict: Verdict) -> Verdict:
    """The accepted path as far as it runs through the drafter's own nodes; the token after it is the extra one."""
    number = {place: node for node, place in enumerate(places)}
    path: list[int] = []
    for place in verdict.path:
        if place not in number:
            break
        path.append(number[place])
    accepted = tuple(own.token_ids[node] for node in path[own.num_known :])
    after = tree.token_ids[verdict.path[len(path)]] if len(path) < len(verdict.path) else verdict.extra_token
    return Verdict(tuple(path), accepted, after)


def _picked(batch: PackedBatch, trees: Sequence[DraftTree], rows: Sequence[int], starts: Sequence[int]) -> PackedBatch:
    """A batch of some of the nodes."""
    parents = [
        parent + start if parent >= 0 else -1
        for tree, start in zip(trees, starts, strict=False)
        for parent in tree.parents
    ]
    return PackedBatch(
        batch.token_ids[rows],
        np.asarray(parents, dtype=np.int32),
        batch.positions[rows],
        starts,
        batch.kv_lens,
        batch.slots,
    )
