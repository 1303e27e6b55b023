"""A smaller language model drafts [leviathan23, chen23].

It has a cache of its own that follows the target's text, and draws its guesses with the target's noise, so that a
sampled answer is drafted as well as a greedy one. Chains, or trees grown by confidence with `draft_tree_width` above
1. Its vocabulary may be padded or a little smaller or larger than the target's, as long as ids mean the same
(`checkpoint.pairing`). One that was trained for the target names a part of the target's tokens (`trained_model`).
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import final

from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import DEFAULT_SPECULATIVE_TOKENS, DraftConfig
from foreword.draft.base import BaseDrafter, Drawn, Plan, RequestView
from foreword.draft.model.autoregress import Autoregression
from foreword.draft.model.drafter_runtime import drafters_runtime
from foreword.draft.model.follower import Follower
from foreword.draft.model.guesser import Guesser
from foreword.draft.model.trained_model import METHOD, TrainedModelFiles, is_trained_model, load_trained_model
from foreword.errors import ConfigError
from foreword.runtime.base import Decoder
from foreword.sampling.draft_sampling import DraftMode, DraftVocab
from foreword.target.load_model import load_draft_model
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

logger = logging.getLogger(__name__)


@final
class ModelDrafter(BaseDrafter):
    """Drafts with a second decoder.

    Args:
        decoder: the draft model.
        target_vocab_size: rows of the target's head.
        config: width, confidence threshold, whose noise.
        vocab_size: ids that mean the same to both; all rows that both models have, unless given.
        vocab: the target's id of each row of its head, where they are not the same.
        num_nodes: drafted tokens a step, where the user does not say.
    """

    name = "draft_model"
    drawn = Drawn.CHAINS  # whatever `draft_tree_width`: see `Autoregression`

    def __init__(
        self,
        decoder: Decoder,
        target_vocab_size: int,
        config: DraftConfig,
        vocab_size: int | None = None,
        *,
        vocab: DraftVocab | None = None,
        num_nodes: int = DEFAULT_SPECULATIVE_TOKENS,
    ) -> None:
        draft_rows = decoder.spec.vocab_size
        vocab_size = min(draft_rows, target_vocab_size) if vocab_size is None else vocab_size
        self.default_num_nodes = num_nodes
        self.follower = Follower(decoder, draft_rows)
        guesser = Guesser(
            vocab or DraftVocab(target_vocab_size, vocab_size),
            decoder.spec.num_logits,
            DraftMode[config.draft_noise.upper()],
        )
        self.autoregression = Autoregression(
            self.follower, guesser, config.draft_tree_width or 1, config.draft_confidence_threshold
        )

    def start(self, request: RequestView) -> None:
        """Open a region of the draft model's cache."""
        self.follower.start(request)

    def stop(self, request: RequestView) -> None:
        """Free it."""
        self.follower.stop(request)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One draft pass a depth for all requests together."""
        return self.autoregression.propose(requests, plans)


def make(config: DraftConfig, target: Target) -> BaseDrafter:
    """For the registry: loads the draft model beside the target; one of another tokenizer drafts through the text."""
    path = config.model or _trained_for(target)
    if path is None:
        raise ConfigError(
            "drafter draft_model needs a model; give one as draft_model=PATH (a folder, a GGUF file or a hub id), or "
            "train one with 'foreword train draft_model'"
        )
    if is_trained_model(path):
        return _beside(path, config, target)
    draft, pairing = load_draft_model(path, target, partial(drafters_runtime, config))
    for line in pairing.notes:
        logger.info(line)
    if pairing.is_same_vocabulary:
        return ModelDrafter(draft.decoder, target.spec.vocab_size, config, pairing.shared_size)
    from foreword.draft.model.universal import UniversalDrafter

    assert target.model is not None, "a draft model was loaded beside a loaded target"
    return UniversalDrafter(draft.decoder, draft.tokenizer, target.model.tokenizer, config)


def _trained_for(target: Target) -> Path | None:
    """The folder of one that comes with foreword, or lies in the cache, for this target."""
    if target.model is None or not isinstance(target.model.checkpoint, Checkpoint):
        return None
    return trained_drafter(METHOD, target.model.checkpoint.fingerprint)


def _beside(path: str | Path, config: DraftConfig, target: Target) -> ModelDrafter:
    """A model that was trained for this target and borrows of it."""
    beside = target.model
    if beside is None or not isinstance(beside.checkpoint, Checkpoint):
        raise ConfigError(
            f"the draft model {path} borrows its target's embedding; load the target by its folder, file or hub id"
        )
    theirs = beside.checkpoint
    weights = theirs.as_dtype(beside.choice.dtype) if beside.choice.name == "torch" else theirs
    runtime = drafters_runtime(config, beside.runtime)
    made = load_trained_model(TrainedModelFiles(path), target.spec, weights, runtime)
    said = made.settings.get("num_speculative_tokens")
    return ModelDrafter(
        made.decoder,
        target.spec.vocab_size,
        config,
        vocab=made.vocab,
        num_nodes=said if isinstance(said, int) and said > 0 else DEFAULT_SPECULATIVE_TOKENS,
    )
