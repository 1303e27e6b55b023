"""A smaller language model drafts [leviathan23, chen23].

It has a cache of its own that follows the target's text, and draws its guesses with the target's noise, so that a
sampled answer is drafted as well as a greedy one. Chains, or trees grown by confidence with `draft_tree_width` above
1. Its vocabulary may be padded or a little smaller or larger than the target's, as long as ids mean the same
(`checkpoint.pairing`). One that was trained for the target names a part of the target's tokens (`trained_model`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import DEFAULT_SPECULATIVE_TOKENS
from foreword.draft.base import BaseDrafter, Drawn, Plan, RequestView
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
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


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions(DrafterOptions):
    """What the draft model grows, and how its weights are held."""

    draft_tree_width: int | None = option(None, "candidates per level; None or 1 drafts a chain", lowest=1, highest=64)
    draft_confidence_threshold: float = option(
        0.0, "stop a chain where the draft model is less sure", lowest=0, highest=1
    )
    draft_dtype: str | None = option(
        None, "its weights on the native runtime; None for the target's", choices=("int8", "int4")
    )


@final
class ModelDrafter(BaseDrafter):
    """Drafts with a smaller model.

    Args:
        decoder: the draft model.
        target_vocab_size: rows of the target's head.
        options: width and confidence threshold.
        draft_mode: whose noise draws guesses.
        vocab_size: ids that mean the same to both; all rows that both models have, unless given.
        vocab: the target's id of each row of its head, where they are not the same.
        num_nodes: drafted tokens per step, where the user does not say.
    """

    name = "draft_model"
    drawn = Drawn.CHAINS  # whatever `draft_tree_width`: see `Autoregression`

    def __init__(
        self,
        decoder: Decoder,
        target_vocab_size: int,
        options: DraftModelOptions,
        vocab_size: int | None = None,
        *,
        draft_mode: DraftMode = DraftMode.SHARED,
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
            draft_mode,
        )
        self.autoregression = Autoregression(
            self.follower, guesser, options.draft_tree_width or 1, options.draft_confidence_threshold
        )

    def start(self, request: RequestView) -> None:
        """Open a sequence slot in the draft model's KV cache."""
        self.follower.start(request)

    def stop(self, request: RequestView) -> None:
        """Free it."""
        self.follower.stop(request)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One draft pass a depth for all requests together."""
        return self.autoregression.propose(requests, plans)


def make(settings: DrafterSettings, target: Target) -> BaseDrafter:
    """Loads the draft model beside the target; one of another tokenizer drafts through the text."""
    options: DraftModelOptions = settings.options
    path = settings.path or _trained_for(target)
    if path is None:
        raise ConfigError(
            "drafter draft_model needs a model; give one as draft_model=PATH (a folder, a GGUF file or a hub id), or "
            "train one with 'foreword train draft_model'"
        )
    if is_trained_model(path):
        return _beside(path, settings, target)
    draft, pairing = load_draft_model(path, target, partial(drafters_runtime, options.draft_dtype))
    for line in pairing.notes:
        logger.info(line)
    if pairing.is_same_vocabulary:
        shared, mode = pairing.shared_size, settings.draft_mode
        return ModelDrafter(draft.decoder, target.spec.vocab_size, options, shared, draft_mode=mode)
    from foreword.draft.model.universal import UniversalDrafter

    assert target.model is not None, "a draft model was loaded beside a loaded target"
    if (options.draft_tree_width or 1) > 1:
        raise ConfigError(
            f"draft_tree_width is {options.draft_tree_width}, which does nothing for a draft model of another tokenizer ({path}): "
            f"it drafts chains; leave it out"
        )
    threshold = options.draft_confidence_threshold
    return UniversalDrafter(draft.decoder, draft.tokenizer, target.model.tokenizer, threshold)


def _trained_for(target: Target) -> Path | None:
    """The folder of one that is installed or lies in the cache for this target."""
    if target.model is None or not isinstance(target.model.checkpoint, Checkpoint):
        return None
    return trained_drafter(METHOD, target.model.checkpoint.fingerprint)


def _beside(path: str | Path, settings: DrafterSettings, target: Target) -> ModelDrafter:
    """A model that was trained for this target and shares its embedding and head."""
    beside = target.model
    if beside is None or not isinstance(beside.checkpoint, Checkpoint):
        raise ConfigError(
            f"the draft model {path} borrows its target's embedding; load the target by its folder, file or hub id"
        )
    theirs = beside.checkpoint
    weights = theirs.as_dtype(beside.choice.dtype) if beside.choice.name == "torch" else theirs
    runtime = drafters_runtime(settings.options.draft_dtype, beside.runtime)
    made = load_trained_model(TrainedModelFiles(path), target.spec, weights, runtime)
    said = made.settings.get("num_speculative_tokens")
    return ModelDrafter(
        made.decoder,
        target.spec.vocab_size,
        settings.options,
        draft_mode=settings.draft_mode,
        vocab=made.vocab,
        num_nodes=said if isinstance(said, int) and said > 0 else DEFAULT_SPECULATIVE_TOKENS,
    )


DRAFT_MODEL = DrafterType(
    name=METHOD,
    summary="drafts with a smaller model of any tokenizer, or one distilled from the model itself",
    needs="a smaller model",
    fits="large targets with a small sibling",
    make=make,
    options=DraftModelOptions,
    takes="PATH",
    runs_model=True,
    reads_whole_text=True,
    in_tune=False,
    variants={"width 2": {"draft_tree_width": 2}},
)
