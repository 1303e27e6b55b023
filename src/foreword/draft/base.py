"""What every drafter offers.

A drafter proposes one tree per request before each pass and observes the verdict afterwards. It can only make generation
faster or slower, never change the output. State is per request, from `start` to `stop`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from foreword.config import DEFAULT_SPECULATIVE_TOKENS
from foreword.runtime.base import PassOutput
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch
from foreword.verify.verdict import Verdict


@dataclass(frozen=True)
class Plan:
    """How much to propose for one request in one step, and why."""

    num_known: int  # tokens already decided that the target has not read: the root, or a chunk of the prompt
    num_nodes: int  # most drafted nodes; 0 for none
    depth: int  # most drafted tokens in a row
    drafter: str = "none"
    reason: str = ""
    first_drafters: int = 0  # of a cascade, how many may be asked, from its first on; 0: all

    def allows(self, turn: int) -> bool:
        """Whether the drafter of a cascade whose turn it is may be asked."""
        return self.first_drafters == 0 or turn < self.first_drafters


class Drawn(IntEnum):
    """The kind of a drafter's trees where it samples (`DraftMode.OWN`): not every verifier takes all of them."""

    NOTHING = 0  # deterministic with every verifier
    CHAINS = 1  # one draft token after another
    TREES = 2  # with branches; every sampled node is kept
    LOOSE_TREES = 3  # sampled nodes may be missing (`DraftTree.shape_is_fixed`)


@dataclass(frozen=True)
class DraftNeed:
    """What a drafter wants to see of every pass (see `runtime.base.Need`)."""

    taps: tuple[int, ...] = ()
    hidden: bool = False
    top_k: int = 0
    top_of_known: bool = True  # at every known node too; else at the last committed one and the drafted ones alone
    # Whether decoding passes for which nothing was drafted, and texts in regions that are there already, need not be seen.
    can_miss: bool = False

    def top_nodes(self, trees: Sequence[DraftTree], starts: Sequence[int]) -> list[int]:
        """The nodes of a pass whose top-k tokens are needed: one row of `output.top_ids` each."""
        if self.top_k == 0:
            return []
        return [
            start + node
            for tree, start in zip(trees, starts, strict=False)
            for node in range(0 if self.top_of_known else tree.num_known - 1, tree.num_nodes)
        ]


class RequestView(Protocol):
    """What a drafter may read of a request."""

    @property
    def request_id(self) -> int:
        """Unique in its engine."""
        ...

    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt and answer so far; the last one is the next root."""
        ...

    @property
    def prompt_len(self) -> int:
        """How many of them are the prompt."""
        ...

    @property
    def kv_len(self) -> int:
        """How many of them the target has read."""
        ...

    @property
    def slot(self) -> int:
        """Its sequence slot in the target's KV cache."""
        ...

    @property
    def sampler(self) -> Sampler:
        """How the target draws; a drafter may use the same noise."""
        ...

    @property
    def reference_ids(self) -> Sequence[int]:
        """A text that the answer is expected to resemble; empty where none was given. No part of `token_ids`."""
        ...

    @property
    def is_remembered(self) -> bool:
        """Whether a drafter may keep anything of it beyond its end."""
        ...


class Drafter(Protocol):
    """Proposes draft trees."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def need(self) -> DraftNeed:
        """What `observe` wants of every pass."""
        ...

    @property
    def drawn(self) -> Drawn:
        """What it draws at random where the verifier wants that."""
        ...

    @property
    def uses_reference(self) -> bool:
        """Whether it looks at `RequestView.reference_ids`."""
        ...

    @property
    def default_num_nodes(self) -> int:
        """Most drafted nodes per step, where none is given."""
        ...

    def start(self, request: RequestView) -> None:
        """A request starts; its prompt is complete."""
        ...

    def stop(self, request: RequestView) -> None:
        """It has ended, or its reader went away: free its state."""
        ...

    def close(self) -> None:
        """No request will come any more: write what is kept beyond the process."""
        ...

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request: its committed tokens first, then at most as many nodes as its plan allows."""
        ...

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """The verdicts on the trees of a pass, prefill and plain steps included; called after the tokens were committed."""
        ...


def known_ids(request: RequestView, plan: Plan) -> Sequence[int]:
    """The decided tokens that the target reads in this pass."""
    return request.token_ids[request.kv_len : request.kv_len + plan.num_known]


class BaseDrafter:
    """Does nothing at every call: the parts that a drafter need not write itself."""

    name = "base"
    need = DraftNeed()
    drawn = Drawn.NOTHING
    uses_reference = False
    default_num_nodes = DEFAULT_SPECULATIVE_TOKENS

    def start(self, request: RequestView) -> None:
        """Nothing to prepare."""

    def stop(self, request: RequestView) -> None:
        """Nothing to free."""

    def close(self) -> None:
        """Nothing to keep: called once, after the last request."""

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """The committed tokens and no draft."""
        return [DraftTree.chain(known_ids(r, plan)) for r, plan in zip(requests, plans, strict=True)]

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Nothing to learn."""
