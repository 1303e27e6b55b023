"""One request: its tokens, and when it ends."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from foreword.draft.base import Plan
from foreword.engine.answer_text import AnswerText
from foreword.engine.guided import guided_tree
from foreword.engine.result import FinishReason, RequestId, TokenLogprob
from foreword.engine.stats import RequestStats
from foreword.errors import ConfigError, ForewordError, PromptTooLongError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.grammar_matcher import GrammarMatcher
from foreword.sampling.params import SamplingParams
from foreword.sampling.processors import make_logits_processor
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree

T = TypeVar("T")
_next_id = itertools.count()


class Request:
    """One request: a prompt and the answer so far. Satisfies `draft.base.RequestView`.

    `token_ids[:kv_len]` is in the target's cache. While decoding, all but the last token are: that one is the root of
    the next draft tree.

    Args:
        prompt_ids: the prompt.
        params: its options. A grammar among them counts only as `grammar`, stop strings only with `text`.
        context_len: most tokens of prompt and answer together.
        eos_token_ids: tokens that end the answer, unless the options ignore them.
        sample_index: which of several answers with the same seed this is.
        text: follows the answer's text, for stop strings and streams.
        grammar: what the answer must look like; not shared with another request.
        drafting: how it is drafted for. A reference among it counts only as token ids.
        public_id: what its caller calls it; the answers to one prompt share it. `request_id` is the engine's own.
    """

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        context_len: int,
        eos_token_ids: tuple[int, ...] = (),
        sample_index: int = 0,
        text: AnswerText | None = None,
        grammar: GrammarMatcher | None = None,
        drafting: DraftingParams | None = None,
        public_id: RequestId | None = None,
    ) -> None:
        if not prompt_ids:
            raise ConfigError("the prompt is empty: it has no tokens; give at least one")
        if len(prompt_ids) >= context_len:
            raise PromptTooLongError(len(prompt_ids), context_len)
        self.request_id = next(_next_id)
        self.public_id: RequestId = self.request_id if public_id is None else public_id
        self.params = params.with_seed()
        self.drafting = drafting or DraftingParams()
        reference = self.drafting.reference or ()
        self.reference_ids: Sequence[int] = () if isinstance(reference, str) else reference
        self.token_ids: list[int] = list(prompt_ids)
        self.prompt_len = len(prompt_ids)
        self.max_len = min(context_len, self.prompt_len + params.max_tokens)
        self.stop_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )
        assert self.params.seed is not None
        self.text, self.grammar = text, grammar
        processor = make_logits_processor(self.params, self.stop_ids, grammar)
        self.sampler = Sampler(self.params.warp, self.params.seed, sample_index, processor)
        self.drafted_by: list[str | None] = []  # what proposed each token of the answer; None: it was not drafted
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.slot = -1
        self.kv_len = 0
        self.was_preempted = False  # it was running, and had to begin anew
        wants_nothing = self.remaining == 0 and params.prompt_logprobs is None
        self.finish_reason: FinishReason | None = "length" if wants_nothing else None
        self.error: Exception | None = None  # what ended it before its time; its owner is told
        self.stats = RequestStats(prompt_tokens=self.prompt_len)
        self.arrived_s = self.start_s = time.perf_counter()  # of the call; of its admission, once it is admitted
        self.first_token_s = 0.0

    @property
    def is_remembered(self) -> bool:
        """Whether a drafter may keep anything of it beyond its end."""
        return self.drafting.remember

    @property
    def new_ids(self) -> list[int]:
        """The answer so far."""
        return self.token_ids[self.prompt_len :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be added."""
        return self.max_len - len(self.token_ids)

    @property
    def num_unread(self) -> int:
        """Decided tokens that the target has not read yet: 1 while decoding."""
        return len(self.token_ids) - self.kv_len

    @property
    def is_prefilling(self) -> bool:
        """Whether it reads tokens that are decided: its prompt, or after a preemption its answer so far too."""
        return len(self.token_ids) == self.prompt_len or self.num_unread > 1

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    def fail(self, error: BaseException) -> None:
        """End it for an error, unless it has ended already. What interrupts one thread is a plain error to others."""
        if self.is_finished:
            return
        if not isinstance(error, Exception):
            error = ForewordError(
                f"the pass that this request shared with others failed with {error!r}; send the request again"
            )
        self.error, self.finish_reason = error, "abort"

    def restart(self) -> None:
        """Its region of the cache is gone: everything is to be read again. The tokens stay."""
        self.kv_len = 0
        self.was_preempted = True
        self.prompt_logprobs = [None]

    def attempt(self, call: Callable[..., T], *args: object) -> T | None:
        """Work for this request alone. None where it raises, or did before: the error ends no other request."""
        if self.error is not None:
            return None
        try:
            return call(*args)
        except Exception as error:
            self.fail(error)
            return None

    def guide(self, tree: DraftTree, plan: Plan) -> DraftTree:
        """The drafter's tree as the grammar wants it; the same one where nothing is drafted or there is no grammar."""
        if self.grammar is None or plan.num_nodes == 0:
            return tree
        return guided_tree(tree, self.grammar, self.new_ids, self.remaining - 1)

    def extend(self, emitted: tuple[int, ...]) -> int:
        """Add new tokens up to the first stop condition; returns how many were kept."""
        if not emitted:  # the prompt goes on
            return 0
        kept, self.finish_reason = cut(emitted, self.remaining, self.stop_ids, self.text)
        now = time.perf_counter()
        if not self.new_ids:
            self.first_token_s = now
            self.stats.prefill_s = now - self.start_s
        self.token_ids.extend(emitted[:kept])
        self.stats.new_tokens += kept
        del self.logprobs[self.stats.new_tokens :]
        self.stats.decode_s = now - self.first_token_s
        return kept


def cut(
    emitted: tuple[int, ...], remaining: int, stop_ids: frozenset[int], text: AnswerText | None = None
) -> tuple[int, FinishReason | None]:
    """How many of the emitted tokens to keep, and why the request ends there, if it does.

    A stop token inside an accepted run ends it right there (and is kept); so do a token that completes a stop string of
    `text`, which is told of every token kept, and the last token allowed.
    """
    for index, token in enumerate(emitted[:remaining]):
        completes_stop = text is not None and text.push(token)
        if completes_stop or token in stop_ids:
            return index + 1, "stop"
    if len(emitted) >= remaining:
        return remaining, "length"
    return len(emitted), None
