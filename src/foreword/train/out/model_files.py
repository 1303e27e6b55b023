"""A model in training as a Hugging Face folder of its own: weights, config, tokenizer.

config.json  generation_config.json  model.safetensors  tokenizer.json  tokenizer_config.json  chat_template.jinja
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from foreword.checkpoint.families import FAMILIES
from foreword.checkpoint.name_map import HF_NAMES, expected_shapes, file_name
from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.errors import ConfigError
from foreword.files import whole_file, write_whole
from foreword.train.methods.method import TargetTables
from foreword.train.out.layer_files import layer_config

_STORED = ("float32", "float16", "bfloat16")


def write_model(folder: Path, target: TargetTables, tensor: Callable[[str], Tensor], facts: Mapping[str, Any]) -> None:
    """A model like `target` with other weights; every file is written whole or not at all.

    Weights have the dtype of the target's files, or bfloat16 where those are quantised.

    Args:
        folder: where to.
        target: what it is like.
        tensor: its weights by canonical name.
        facts: for config.json's "foreword" object.
    """
    checkpoint = target.weights
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError("a tuned model is written like its original; load the target from its folder or file")
    dtype = checkpoint.dtype_name if checkpoint.dtype_name in _STORED else "bfloat16"
    names = {name: file_name(HF_NAMES, name) for name in expected_shapes(target.spec)}
    tensors = {theirs: tensor(name).to(getattr(torch, dtype)).contiguous() for name, theirs in names.items()}
    tokenizer = checkpoint.tokenizer
    spec, ends = target.spec, {"eos_token_id": list(target.eos_token_ids), "bos_token_id": tokenizer.bos_token_id}
    config = {
        "architectures": [FAMILIES[spec.family].saved_as],
        "model_type": spec.family,
        **layer_config(spec, spec.num_layers),
        "tie_word_embeddings": spec.tied_head,
        "torch_dtype": dtype,
        **ends,
        "foreword": dict(facts),
    }
    _write_tokenizer(folder, tokenizer)
    write_whole(folder / "generation_config.json", _json(ends))
    write_whole(folder / "config.json", _json(config))
    with whole_file(folder / "model.safetensors") as file:
        file.write(to_bytes(tensors, metadata={"format": "pt"}))


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    write_whole(folder / "tokenizer.json", tokenizer.backend.to_str(pretty=True))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_whole(folder / "tokenizer_config.json", _json({**config, **tokenizer.special_tokens}))
    if tokenizer.chat_template is not None:
        write_whole(folder / "chat_template.jinja", tokenizer.chat_template)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
