"""Universal assisted generation: a draft model with another tokenizer, through the text [timor25].

    the target's tokens ──decode──► text ──encode──► the draft model's tokens
                                                           │ it goes on
    the target's guesses ◄──encode── text and its continuation ◄──decode

Texts do not always encode to the tokens they came from, at the seam least of all. So the continuation is encoded
together with the last few tokens before it, and only what follows exactly these counts. What is lost there costs
guesses, never words: the target checks its own tokens. The draft model takes its most probable tokens; noise cannot be
shared between vocabularies.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.model.follower import Follower
from foreword.draft.model.guesser import NOT_NUMBERS
from foreword.runtime.base import Decoder, Need
from foreword.tree.draft_tree import DraftTree

logger = logging.getLogger(__name__)

_SEAM = 8  # tokens before the seam that are encoded again with what follows
_BROKEN = "\ufffd"  # stands for a character of which only some bytes are there yet


class TextTokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...


@dataclass(eq=False)
class _Job:
    """One request's proposal in the making."""

    request: RequestView
    index: int
    depth: int
    seam: list[int]  # the draft model's last tokens of the text
    feed: list[int]  # its tokens to be read next
    room: int  # draft tokens that still fit the draft model's context
    token_ids: list[int] = field(default_factory=list)  # the draft model's
    probs: list[float] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)  # the target's


@final
class UniversalDrafter(BaseDrafter):
    """Chains drafted by a model with another tokenizer; deterministic.

    Args:
        decoder: the draft model, its vocabulary no larger than its tokenizer's.
        draft_tokenizer: its tokenizer.
        target_tokenizer: the target's.
        threshold: the confidence below which a chain ends.
    """

    name = "draft_model"

    def __init__(
        self,
        decoder: Decoder,
        draft_tokenizer: TextTokenizer,
        target_tokenizer: TextTokenizer,
        threshold: float = 0.0,
    ) -> None:
        self.draft_tokenizer, self.target_tokenizer = draft_tokenizer, target_tokenizer
        self.follower = Follower(decoder, decoder.spec.vocab_size)
        self.num_usable = decoder.spec.vocab_size
        self.threshold = threshold
        self._warned = False

    def start(self, request: RequestView) -> None:
        """Open a sequence slot in the draft model's KV cache."""
        self.follower.start(request)

    def stop(self, request: RequestView) -> None:
        """Free it."""
        self.follower.stop(request)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One draft pass for each of the draft model's tokens, all requests together."""
        jobs = [
            job
            for index, (request, plan) in enumerate(zip(requests, plans, strict=True))
            if (job := self._job(index, request, plan)) is not None
        ]
        self._draft(list(jobs))
        trees = [DraftTree.chain(known_ids(r, plan)) for r, plan in zip(requests, plans, strict=True)]
        for job in jobs:
            known = trees[job.index].token_ids
            chain = DraftTree.chain(known, job.guesses)
            mean = math.exp(sum(map(math.log, job.probs)) / len(job.probs)) if job.probs else 1.0
            probs = [*[1.0] * len(known), *(mean ** (i + 1) for i in range(len(job.guesses)))]
            trees[job.index] = DraftTree(chain.token_ids, chain.parents, chain.num_known, probs)
        return trees

    def _job(self, index: int, request: RequestView, plan: Plan) -> _Job | None:
        depth = min(plan.depth, plan.num_nodes)
        if depth == 0 or request.kv_len + plan.num_known != len(request.token_ids):
            return None
        text = self.target_tokenizer.decode(request.token_ids)
        if text.endswith(_BROKEN):  # the draft model cannot go on from half a character
            return None
        draft_text = self.draft_tokenizer.encode(text)  # all of it at every step: a millisecond for a thousand tokens
        room = self.follower.decoder.spec.context_len - len(draft_text) + 1
        if not draft_text or room <= 0 or max(draft_text) >= self.num_usable:
            return None
        return _Job(request, index, depth, draft_text[-_SEAM:], self.follower.follow(request, draft_text), room)

    def _draft(self, jobs: list[_Job]) -> None:
        """Let the draft model go on until the continuation is long enough in the target's tokens."""
        while jobs:
            trees = [DraftTree.chain(job.feed) for job in jobs]
            ends, num_nodes = [], 0
            for tree in trees:
                num_nodes += tree.num_nodes
                ends.append(num_nodes - 1)
            output = self.follower.run(
                [job.request for job in jobs],
                trees,
                [range(tree.num_nodes) for tree in trees],
                Need(top_k=1, top_nodes=ends),
            )
            assert output.top_ids is not None, "the most probable tokens were asked for"
            assert output.top_logprobs is not None, "with their log-probabilities"
            likeliest, log_probs = output.top_ids[:, 0].tolist(), output.top_logprobs[:, 0].tolist()
            jobs = [
                job
                for job, token, log_prob in zip(jobs, likeliest, log_probs, strict=True)
                if self._goes_on(job, token, math.exp(log_prob))
            ]

    def _goes_on(self, job: _Job, token: int, prob: float) -> bool:
        """Add a draft token; whether another one is wanted."""
        if math.isnan(prob) and not self._warned:
            logger.warning(NOT_NUMBERS)
            self._warned = True
        if token >= self.num_usable or not prob > 0.0:
            return False
        job.token_ids.append(token)
        job.probs.append(prob)
        job.feed = [token]
        guesses = self._guesses(job)
        job.guesses = guesses[: job.depth]
        # One more than wanted: the last one may still become another token with what follows.
        is_long_enough = len(guesses) > job.depth or len(job.token_ids) >= 4 * (job.depth + 1)
        return not is_long_enough and prob >= self.threshold and len(job.token_ids) < job.room

    def _guesses(self, job: _Job) -> list[int]:
        """The continuation in the target's tokens: what follows the text's last ones when encoded with them."""
        before = self.draft_tokenizer.decode(job.seam)  # decoded together: alone, a first space would be lost
        continuation = self.draft_tokenizer.decode([*job.seam, *job.token_ids])[len(before) :].rstrip(_BROKEN)
        if not continuation:
            return []
        seam_ids = list(job.request.token_ids[-_SEAM:])
        seam = self.target_tokenizer.decode(seam_ids)
        whole = self.target_tokenizer.encode(seam + continuation, add_special_tokens=False)
        alone = self.target_tokenizer.encode(seam, add_special_tokens=False) if seam else []
        if alone and whole[: len(alone)] == alone and seam_ids[-1] == alone[-1]:
            return whole[len(alone) :]
        return self.target_tokenizer.encode(continuation, add_special_tokens=False)
