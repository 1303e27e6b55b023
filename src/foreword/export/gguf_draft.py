"""A draft model as a GGUF file for llama.cpp, with the target's own tokenizer in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foreword.checkpoint.gguf_header import StringList, read_gguf_header
from foreword.errors import ConfigError
from foreword.export.draft_model import EMBED, HEAD, hf_layout
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource

if TYPE_CHECKING:
    from torch import Tensor

_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
FILE = "draft.gguf"


def llamacpp_layout(source: DrafterSource, engine: str) -> Layout:
    """The same tensors as for the others; `ConfigError` where there is no tokenizer to write into the file."""
    if source.target.path.suffix != ".gguf":
        raise ConfigError(
            "llama.cpp reads a draft model with its target's tokenizer, which is taken from the target's GGUF file; name that "
            "file with --model (or export for vllm, and convert the folder with llama.cpp's convert_hf_to_gguf.py)"
        )
    return hf_layout(source, engine)


def write_gguf(path: Path, layout: Layout, target: Path) -> None:
    """bfloat16 matrices, float32 norms, and everything that the target's file says of its tokenizer."""
    import gguf

    config = layout.config
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("draft model")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _copy_tokenizer(writer, read_gguf_header(target).metadata)
    for name, tensor in layout.tensors.items():
        _add(writer, _gguf_name(name), _rows(name, tensor, heads, kv_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(writer: Any, metadata: Mapping[str, Any]) -> None:
    import gguf

    for key, value in metadata.items():
        if not key.startswith("tokenizer."):
            continue
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list | tuple | StringList):
            writer.add_array(key, list(value))
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32)
        else:
            writer.add_float32(key, value)


def _gguf_name(name: str) -> str:
    if name in (EMBED, HEAD):
        return "token_embd.weight" if name == EMBED else "output.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[part.removesuffix('.weight')]}.weight"


def _rows(name: str, tensor: "Tensor", heads: int, kv_heads: int) -> "Tensor":
    """llama.cpp rotates neighbours where Hugging Face rotates halves: rows of q and k change places."""
    if ".q_proj." in name or ".k_proj." in name:
        count = heads if ".q_proj." in name else kv_heads
        halves = tensor.reshape(count, 2, len(tensor) // count // 2, -1)
        return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def _add(writer: Any, name: str, tensor: "Tensor") -> None:
    import gguf
    import torch

    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.float().numpy())
        return
    raw = tensor.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint8)
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
