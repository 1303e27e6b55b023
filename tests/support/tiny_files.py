"""Random tiny models and tokenizers as files: Hugging Face folders and GGUFs. Names and layouts are spelled out here
independently of foreword's own tables."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from foreword.config import ModelSpec
from tests.support.tiny_models import TinyWeights, hf_name

# Dimensions that quantised blocks of 32 divide.
GGUF_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
}  # fmt: skip
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config_json(spec: ModelSpec, **changes: Any) -> dict[str, Any]:
    """config.json in the spelling of transformers 4."""
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{names[spec.family]}ForCausalLM"],
        "model_type": spec.family,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_len,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_head,
        "eos_token_id": 2,
        **changes,
    }


def write_folder(
    folder: Path, weights: TinyWeights, *, num_shards: int = 1, dtype: torch.dtype = torch.float32, **config: Any
) -> Path:
    """A Hugging Face folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(weights.spec, **config)))
    state = {hf_name(name): tensor.to(dtype) for name, tensor in weights.tensors.items()}
    if num_shards == 1:
        save_file(state, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(state.items()) if i % num_shards == shard}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor."""
    whole = {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    parts = {
        "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "o": "attn_output",
        "attn_norm": "attn_norm",
    }  # fmt: skip
    return f"blk.{layer}.{parts.get(part, f'attn_{part}')}.{kind}"


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a projection as GGUF's Llama stores them: row i + d/2 of a head directly after row i."""
    head_dim = weight.shape[0] // num_heads
    order = []
    for head in range(num_heads):
        for i in range(head_dim // 2):
            order += [head * head_dim + i, head * head_dim + i + head_dim // 2]
    return weight[order]


def write_gguf(
    path: Path,
    weights: TinyWeights,
    quantisation: str = "F32",
    *,
    metadata: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    raw_tensors: dict[str, tuple[np.ndarray, str]] | None = None,
    tokenizer: bool = False,
) -> Path:
    """A GGUF file; matrices in `quantisation`, the rest in F32. `metadata` without the architecture's prefix."""
    spec = weights.spec
    writer = gguf.GGUFWriter(path, spec.family)
    sizes = {
        "block_count": spec.num_layers,
        "context_length": spec.context_len,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": spec.rope.theta,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        **(metadata or {}),
    }
    for key, value in sizes.items():
        _add(writer, key if key.startswith("split.") else f"{spec.family}.{key}", value)
    if tokenizer:
        add_byte_level_tokenizer(writer, spec.vocab_size)
    raw = raw_tensors or {}
    for name, tensor in weights.tensors.items():
        values = tensor.numpy()
        if spec.family == "llama" and name.endswith((".q.weight", ".k.weight")):
            values = interleaved(values, spec.num_heads if ".q." in name else spec.num_kv_heads)
        if name in raw:
            writer.add_tensor(gguf_name(name), raw[name][0], raw_dtype=gguf.GGMLQuantizationType[raw[name][1]])
        else:
            _add_tensor(writer, gguf_name(name), values, quantisation if values.ndim == 2 else "F32")
    for name, values in (extra_tensors or {}).items():
        _add_tensor(writer, name, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quantisation: str) -> None:
    kind = gguf.GGMLQuantizationType[quantisation]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), kind), raw_dtype=kind)


def byte_chars() -> list[str]:
    """GPT-2's characters of the bytes 0 to 255."""
    chars, hidden = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            chars.append(chr(byte))
        else:
            chars.append(chr(256 + hidden))
            hidden += 1
    return chars


BYTE_LEVEL_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTE_LEVEL_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "1 2", "Ċ Ċ", "Ã ¤", "o r"]


def byte_level_vocabulary() -> list[str]:
    """Special tokens, one user-defined token, all bytes, what the merges make."""
    return [*BYTE_LEVEL_SPECIAL, "<tool>", *byte_chars(), *(merge.replace(" ", "") for merge in BYTE_LEVEL_MERGES)]


def add_byte_level_tokenizer(
    writer: gguf.GGUFWriter, vocab_size: int | None = None, pre: str | None = "smollm", template: str | None = CHATML
) -> None:
    tokens = byte_level_vocabulary()
    kinds = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), vocab_size or 0)]
    kinds += [5] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(BYTE_LEVEL_MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


SENTENCEPIECE_PIECES = [
    "\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello", "\u2581w", "w", "é", "a", "b", "c",
    "ab", "bc",
]  # fmt: skip


def add_sentencepiece_tokenizer(writer: gguf.GGUFWriter, add_space_prefix: bool | None = None) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SENTENCEPIECE_PIECES]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(SENTENCEPIECE_PIECES)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    scores = [-float(i) for i in range(len(SENTENCEPIECE_PIECES))]
    scores[-1] = 1.0  # the last piece is the best: ids do not give the order
    writer.add_token_scores([0.0] * 259 + scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if add_space_prefix is not None:
        writer.add_add_space_prefix(add_space_prefix)


def write_tokenizer_gguf(path: Path, add: Any, **options: Any) -> Path:
    """A GGUF that holds a tokenizer and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    add(writer, **options)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
