"""Can a transformers model read packed trees? Refusals that are known beforehand, and a trial (`hf_trial`) of the rest.

Sliding windows are longer than any trial should be, so they are tried with a window of a few tokens on a twin of the
model that shares its weights (`hf_modules.twin`): of the masks that a model may want, those by which the twin comes
nearest to what it says by itself.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foreword.config import ModelSpec
from foreword.errors import UnsupportedModelError
from foreword.target.hf_adapter import HFDecoder, cache_argument
from foreword.target.hf_mask import SLIDING, MaskPlan
from foreword.target.hf_modules import twin
from foreword.target.hf_trial import Trial

_ATTENTION = ("eager", "sdpa")
_TRIAL_WINDOW = 3
_OTHER_WINDOWS = (
    "attention_chunk_size",
    "window_size",
    "attention_window",
    "attention_window_size",
    "local_window_size",
)


def refuse_known(model: Any, source: str) -> None:
    """`UnsupportedModelError` for what no trial is needed to know."""
    config = model.config.get_text_config(decoder=True)
    reason = None
    if getattr(model.config, "is_encoder_decoder", False):
        reason = "is an encoder-decoder model; supported: decoders that continue a text"
    elif kinds := _state_kinds(model, config):
        reason = (
            f"keeps {kinds}, which cannot be taken back when a draft is rejected; supported: attention in all layers"
        )
    elif getattr(config, "alibi", False):
        reason = "biases attention by the order of the keys (alibi), which a tree does not have; supported: positions per token"
    elif "position_ids" not in _parameters(model):
        reason = "takes no position_ids, so that branches of a tree cannot be placed; supported: models that take them"
    elif cache_argument(model) is None:
        reason = "takes no cache; a wrapped model has to be unwrapped first (PEFT: merge_and_unload())"
    elif (attention := getattr(config, "_attn_implementation", None)) not in _ATTENTION:
        reason = (
            f"was loaded with attention {attention!r}, which takes no 4-D mask; load it with "
            f"attn_implementation='sdpa' or 'eager'"
        )
    elif other := next((name for name in _OTHER_WINDOWS if getattr(config, name, None)), None):
        reason = f"limits attention by {other} = {getattr(config, other)}, which foreword does not follow; supported: sliding_window"
    if reason is not None:
        raise UnsupportedModelError(f"{source} ({model.config.model_type}) {reason}")


def _parameters(model: Any) -> Any:
    return inspect.signature(model.forward).parameters


def _state_kinds(model: Any, config: Any) -> str | None:
    """What a model keeps besides keys and values, in words; None if nothing."""
    from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    if getattr(model, "_is_stateful", False):
        return "a recurrent state"
    if not hasattr(config, "per_layer_config") and not getattr(config, "layer_types", None):
        return None
    try:
        layers = DynamicCache(config=config).layers
    except (KeyError, AttributeError, TypeError) as error:
        return f"a cache of an unknown kind ({error})"
    known = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
    other = sorted({type(layer).__name__ for layer in layers if type(layer) not in known})
    return f"states of the kind {', '.join(other)} beside keys and values" if other else None


def checked_decoder(model: Any, spec: ModelSpec, source: str) -> tuple[HFDecoder, str | None]:
    """The model as a decoder that passed the trial, and what to say about it.

    Raises:
        UnsupportedModelError: it failed, with the stage and what that means.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    kinds = tuple(sorted(set(getattr(config, "layer_types", None) or ())))
    note = None
    if not window or (kinds and SLIDING not in kinds):
        plans = [MaskPlan(), MaskPlan(layer_types=kinds)] if kinds else [MaskPlan()]
        plan = _best_plan(model, spec, plans) or plans[0]
    elif (plan := _window_plan(model, spec, kinds)) is not None:
        plan = plan if plan.window is None else replace(plan, window=window)
    else:
        plan, spec = MaskPlan(), replace(spec, context_len=min(spec.context_len, window))
        note = f"{source}: its sliding window cannot be followed; its context is cut to the window, {window} tokens"
    decoder = HFDecoder(model, spec, plan)
    failure = Trial(decoder).run().failure
    if failure is not None:
        raise UnsupportedModelError(f"{source} ({spec.family}) cannot be run as a tree of drafts: {failure}")
    return decoder, note


def _window_plan(model: Any, spec: ModelSpec, kinds: Sequence[str]) -> MaskPlan | None:
    """The masks that a twin with a short window wants; None where it cannot be found out."""

    def shorten(config: Any) -> None:
        for part in {id(c): c for c in (config, config.get_text_config(decoder=True))}.values():
            if getattr(part, "sliding_window", None):
                part.sliding_window = _TRIAL_WINDOW

    short = twin(model, shorten)
    if short is None:
        return None
    by_name = tuple(sorted({*kinds, "full_attention", SLIDING}))
    plans = [MaskPlan(_TRIAL_WINDOW, by_name), MaskPlan(_TRIAL_WINDOW), MaskPlan()]
    return _best_plan(short, spec, plans)


def _best_plan(model: Any, spec: ModelSpec, plans: Sequence[MaskPlan]) -> MaskPlan | None:
    """Of the plans that pass, the one nearest to the model's output by itself."""
    outcomes = [(Trial(HFDecoder(model, spec, plan)).run(), plan) for plan in plans]
    passed = [(outcome.deviation, index) for index, (outcome, _) in enumerate(outcomes) if outcome.failure is None]
    return plans[min(passed)[1]] if passed else None
