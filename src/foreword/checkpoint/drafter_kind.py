"""What a folder holds, by its card and the names of its tensors: a kind of drafter, or a model that stands alone.

Whoever is handed the wrong one says which it is and how it is used.
"""

from collections.abc import Collection, Mapping
from typing import Any

_MEDUSA = ("medusa_head.", "medusa_heads.", "blocks.", "0.0.linear.", "hydra_")
_EAGLE_FC = ("fc.weight", "model.fc.weight")
_TABLE = ("keys", "counts", "ids", "chances")


def card_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What foreword wrote into the config.json of a drafter that it made; empty for others'."""
    card = config.get("foreword")
    return card if isinstance(card, Mapping) else {}


def drafter_kind_of(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """The drafter's name in foreword; None for what is no drafter, or none that foreword knows.

    Args:
        config: its config.json.
        names: of its tensors.
    """
    method = card_of(config).get("method")
    if method in ("draft_model", "ngram_lm"):
        return method
    if any(name in names for name in _EAGLE_FC):
        return "eagle3" if any(name.endswith("hidden_norm.weight") for name in names) else "eagle2"
    if any(name.startswith(_MEDUSA) for name in names):
        return "medusa2" if method == "medusa2" else "medusa"
    return "ngram_lm" if set(_TABLE) <= set(names) else None


def stands_alone(names: Collection[str]) -> bool:
    """Whether there are a model's own layers."""
    return not any(name in names for name in _EAGLE_FC) and any("layers.0.self_attn.q_proj" in name for name in names)


def what_it_is(config: Mapping[str, Any], names: Collection[str], path: object) -> str:
    """For messages: what the files hold instead, and the option that takes it."""
    if stands_alone(names):
        return f"it holds a model that stands alone, which drafts as draft_model={path}"
    kind = drafter_kind_of(config, names)
    return (
        "it is no drafter that foreword knows" if kind is None else f"it holds a drafter of another kind: {kind}={path}"
    )
