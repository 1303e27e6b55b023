"""Training-free drafters inside vLLM, by its `custom_class` hook (vLLM 0.32, V1 runner; called experimental there).

    vllm serve TARGET
        --speculative-config '{"method": "custom_class", "model": "foreword.integrations.vllm.Proposer", "num_speculative_tokens": 3}'
        --additional-config '{"foreword": {"method": "suffix,ngram_lm=TABLE"}}'

`additional_config["foreword"]` is a `speculative_config` of foreword; without it, `suffix` drafts. vLLM verifies, so drafts
change the speed alone. vLLM is not imported here.

What the hook does not give: request ids, where the prompt ends, when a request ends, sampling parameters, logits, hidden
states, trees. So there are chains only, nothing is kept of past answers, and a request's state is found by its text:
a row's text without the tokens of this step is the text of some row of the step before. That holds when rows move, when a
preempted request comes back and when a prefix is cached. A state follows from its text alone, so that rows of equal
texts may take each other's. One that is not found is made anew from the text.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, final

import numpy as np
from jaxtyping import Int

from foreword.draft.base import Drafter, Plan, RequestView
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.make_drafter import make_drafter
from foreword.draft.names import parse_method
from foreword.errors import ConfigError
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

DRAFTERS = ("suffix", "ngram", "ngram_lm")  # what drafts from the text alone
SECTION = "foreword"  # of vLLM's additional_config
_NODES_PER_TOKEN = 8  # of the tree that a chain of one token is taken from
_MOST_TOKENS = 1_000_000  # of the texts of all states


@dataclass(eq=False)
class _Row:
    """A request as drafters see it (`RequestView`)."""

    request_id: int
    token_ids: list[int]
    prompt_len: int
    slot: int = 0
    sampler: Any = None
    reference_ids: Sequence[int] = ()
    is_remembered: bool = False

    @property
    def kv_len(self) -> int:
        """All but the root."""
        return len(self.token_ids) - 1


@dataclass(frozen=True)
class _Spec:
    vocab_size: int


@dataclass(frozen=True)
class _VocabOnly:
    """As much of a `Target` as these drafters read."""

    spec: _Spec
    model: None = None


class Proposer:
    """What vLLM makes of `foreword.integrations.vllm.Proposer`.

    Args:
        vllm_config: vLLM's `VllmConfig`.

    Raises:
        ConfigError: the settings name a drafter that needs more than the text, or options that cannot be meant.
    """

    def __init__(self, vllm_config: Any) -> None:
        config = checked_config((vllm_config.additional_config or {}).get(SECTION, {}))
        self.num_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_len: int = vllm_config.model_config.max_model_len
        target = _VocabOnly(_Spec(vllm_config.model_config.get_vocab_size()))
        drafter = make_drafter(config, cast(Target, target))
        self.states = RowStates(drafter, vllm_config.scheduler_config.max_num_seqs)

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is none to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Int[np.ndarray, " rows"],
        token_ids_cpu: Int[np.ndarray, "rows len"],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A chain of guesses per row, empty where there is none.

        Args:
            sampled_token_ids: of this step, per row; empty where a chunk of a prompt was read.
            num_tokens_no_spec: tokens of each row, those of this step included.
            token_ids_cpu: the rows' texts.
            slot_mappings: not used.
        """
        drafts: list[list[int]] = []
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            depth = min(self.num_tokens, self.max_len - length - 1)
            is_read = len(sampled) > 0 and length > 0 and depth > 0
            drafts.append(self.states.guess(token_ids_cpu[row, :length], len(sampled), depth) if is_read else [])
        return drafts


@final
@dataclass(eq=False)
class RowStates:
    """The drafter's states of requests, found by text; those looked at longest ago go first.

    Args:
        drafter: whose states depend on the texts alone.
        most: most of them.
        most_tokens: most tokens of their texts, but for the last one's.
    """

    drafter: Drafter
    most: int
    most_tokens: int = _MOST_TOKENS
    num_tokens: int = 0
    _states: OrderedDict[int, tuple[bytes, _Row]] = field(default_factory=OrderedDict)  # by request id, oldest first
    _places: dict[int, list[int]] = field(default_factory=dict)  # hash of a text -> request ids
    _made: int = 0

    def __len__(self) -> int:
        return len(self._states)

    def guess(self, text: Int[np.ndarray, " len"], num_new: int, depth: int) -> list[int]:
        """The drafter's best chain after `text`, whose last `num_new` tokens are of this step."""
        row = self._take(text, max(len(text) - num_new, 0))
        plan = Plan(num_known=1, num_nodes=depth * _NODES_PER_TOKEN, depth=depth)
        chain = best_chain(self.drafter.propose([cast(RequestView, row)], [plan])[0])
        self._put(text.astype(np.int64).tobytes(), row)
        return chain

    def _take(self, text: Int[np.ndarray, " len"], len_before: int) -> _Row:
        """The state of the text before this step, brought up to date; a new one where there is none."""
        before = text[:len_before].astype(np.int64).tobytes()
        for number in reversed(self._places.get(hash(before), [])):
            if self._states[number][0] == before:
                row = self._remove(number)
                row.token_ids.extend(text[len_before:].tolist())
                return row
        self._made += 1
        row = _Row(self._made, text.tolist(), len_before)
        self.drafter.start(cast(RequestView, row))
        return row

    def _put(self, text: bytes, row: _Row) -> None:
        self._states[row.request_id] = (text, row)
        self._places.setdefault(hash(text), []).append(row.request_id)
        self.num_tokens += len(row.token_ids)
        while len(self._states) > self.most or (self.num_tokens > self.most_tokens and len(self._states) > 1):
            self.drafter.stop(cast(RequestView, self._remove(next(iter(self._states)))))

    def _remove(self, number: int) -> _Row:
        text, row = self._states.pop(number)
        place = self._places[hash(text)]
        place.remove(number)
        if not place:
            del self._places[hash(text)]
        self.num_tokens -= len(row.token_ids)
        return row


def best_chain(tree: DraftTree) -> list[int]:
    """The path of drafted tokens on which most are expected to be accepted."""
    known, probs = tree.num_known, tree.accept_probs or [1.0] * tree.num_nodes
    gains = [0.0] * tree.num_nodes
    for node in range(known, tree.num_nodes):
        gains[node] = gains[tree.parents[node]] + probs[node]
    node = max(range(known - 1, tree.num_nodes), key=gains.__getitem__)
    path = []
    while node >= known:
        path.append(int(tree.token_ids[node]))
        node = tree.parents[node]
    return path[::-1]


def checked_config(settings: Mapping[str, Any] | str | DraftConfig) -> DraftConfig:
    """The drafter that is named, drafting chains.

    Raises:
        ConfigError: it needs what vLLM's hook does not give.
    """
    config = draft_config(settings, default_method="suffix")
    names = [name for name, _ in parse_method(config.method)]
    if others := [name for name in names if name not in DRAFTERS]:
        raise ConfigError(
            f"drafter is {config.method!r}, and vLLM's custom_class gives texts alone, without which {others[0]} cannot draft; "
            f"allowed: {', '.join(DRAFTERS)}. What was trained is written for vLLM's own methods: foreword export --to vllm"
        )
    if any(member.type.remembers(member.options) for member in config.members):
        raise ConfigError(
            "suffix_decoding_max_cached_requests is set, and vLLM's custom_class does not say when an answer has ended; leave "
            "it out"
        )
    return config.with_options(suffix_decoding_tree=False) if "suffix" in names else config
