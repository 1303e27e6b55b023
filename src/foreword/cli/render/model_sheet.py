"""What `foreword inspect` says of a model: from its headers alone, no weights are read."""

from typing import TYPE_CHECKING, Any

from foreword.checkpoint.opened import Checkpoint
from foreword.config import TORCH_DTYPES, ModelSpec
from foreword.draft.registry import drafter_types

if TYPE_CHECKING:
    from foreword.target.load_model import LoadedModel
    from foreword.target.model_source import ModelSource

# Bytes per weight in memory; int8 and int4 hold their scales besides, which is little more.
_BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
_KV_BYTES = {"torch float32": 4, "native, torch bfloat16": 2}


def model_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that is known, ready for JSON. Sizes in bytes."""
    return {
        "runs_on": "foreword's own decoders",
        "model": checkpoint.source,
        "path": str(checkpoint.path),
        "stored_as": checkpoint.dtype_name,
        "stored_bytes": checkpoint.num_bytes,
        **_facts(checkpoint, _BYTES_PER_WEIGHT, _KV_BYTES),
    }


def adopted_facts(loaded: "LoadedModel") -> dict[str, Any]:
    """The same of a model that transformers holds: there are no native dtypes, and what is stored is not known."""
    torch_only = {name: size for name, size in _BYTES_PER_WEIGHT.items() if name in TORCH_DTYPES}
    return {
        "runs_on": f"transformers: {loaded.choice.reason}",
        "model": loaded.checkpoint.source,
        "path": None,
        "stored_as": None,
        "stored_bytes": None,
        **_facts(loaded.checkpoint, torch_only, {"torch float32": 4, "torch bfloat16": 2}),
    }


def _facts(model: "ModelSource", weight_sizes: dict[str, float], kv_sizes: dict[str, int]) -> dict[str, Any]:
    spec = model.spec
    return {
        "family": spec.family,
        "num_parameters": spec.num_parameters,
        "num_streamed_parameters": spec.num_streamed_parameters,
        "context_len": spec.context_len,
        "sizes": _sizes(spec),
        "tokenizer": _tokenizer(model),
        "weight_bytes": {dtype: int(spec.num_parameters * size) for dtype, size in weight_sizes.items()},
        "kv_bytes_per_token": {name: spec.kv_bytes_per_token(size) for name, size in kv_sizes.items()},
        "drafters": {one.name: one.summary for one in drafter_types()},
    }


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_layers": spec.num_layers,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "tied_head": spec.tied_head,
        "qkv_bias": spec.qkv_bias,
        "qk_norm": spec.qk_norm,
    }


def _tokenizer(checkpoint: "ModelSource") -> dict[str, Any]:
    tokenizer = checkpoint.tokenizer
    return {
        "vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.has_chat_template,
        "end_tokens": {
            str(token): tokenizer.decode([token], skip_special_tokens=False) for token in checkpoint.eos_token_ids
        },
    }
