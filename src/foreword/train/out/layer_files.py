"""The files of a trained drafter that is made of transformer layers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from foreword.config import ModelSpec
from foreword.files import whole_file, write_whole


def write_drafter(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """model.safetensors and config.json, each whole or not at all."""
    with whole_file(folder / "model.safetensors") as file:
        file.write(to_bytes(dict(tensors), metadata={"format": "pt"}))
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")


def layer_config(spec: ModelSpec, num_layers: int) -> dict[str, Any]:
    """What config.json says of layers like those of `spec`, stored in bfloat16 beside a head of their own."""
    config: dict[str, Any] = {
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_len,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if spec.rope.llama3 is not None:
        scaling = spec.rope.llama3
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_len,
        }
    elif spec.rope.linear_factor != 1.0:
        config["rope_scaling"] = {"rope_type": "linear", "factor": spec.rope.linear_factor}
    return config
