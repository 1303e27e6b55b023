"""stories260K, a real model of 260 thousand weights in llama2.c's formats, as a GGUF file with its tokenizer.

The folder's README describes both formats. Their rotary pairs are neighbours, which is how GGUF stores a Llama.
"""

import struct
from pathlib import Path

import gguf
import numpy as np
import torch

from foreword.config import ModelSpec, RopeSpec
from tests.support.tiny_files import gguf_name

SIZES = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "vocab_size", "context_len")


def write_stories(source: Path, path: Path) -> Path:
    """Convert the two files in `source` to one at `path`."""
    spec, tensors = read_model((source / "stories260K.bin").read_bytes())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.context_len)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    tokens, scores = read_tokenizer((source / "tok512.bin").read_bytes())
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)])  # unknown, control, bytes, words
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)  # stories are separated by it
    writer.add_add_bos_token(True)
    for name, tensor in tensors.items():
        writer.add_tensor(gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_model(data: bytes) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """Sizes, and float32 tensors by foreword's names, rows of q and k as they are stored."""
    sizes = dict(zip(SIZES, struct.unpack_from("<7i", data), strict=True))
    spec = ModelSpec(
        family="llama", head_dim=sizes["hidden_size"] // sizes["num_heads"], norm_eps=1e-5, rope=RopeSpec(theta=10_000.0),
        tied_head=True, **sizes,
    )  # fmt: skip
    hidden, inner, kv = spec.hidden_size, spec.intermediate_size, spec.num_kv_heads * spec.head_dim
    values, place = np.frombuffer(data, dtype="<f4", offset=28), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal place
        size = int(np.prod(shape))
        place += size
        return values[place - size : place].reshape(shape)

    tensors = {"embed.weight": take(spec.vocab_size, hidden)}
    kinds = {
        "attn_norm": (hidden,), "q": (hidden, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, hidden),
        "mlp_norm": (hidden,), "gate": (inner, hidden), "down": (hidden, inner), "up": (inner, hidden),
    }  # fmt: skip
    for kind, shape in kinds.items():
        for layer, tensor in enumerate(take(spec.num_layers, *shape)):
            tensors[f"layers.{layer}.{kind}.weight"] = tensor
    tensors["norm.weight"] = take(hidden)
    assert torch.tensor(values[:place]).isfinite().all()
    return spec, tensors


def read_tokenizer(data: bytes) -> tuple[list[str], list[float]]:
    """Pieces in SentencePiece's spelling, and their scores."""
    tokens, scores, place = [], [], 4
    while place < len(data):
        score, length = struct.unpack_from("<fI", data, place)
        tokens.append(data[place + 8 : place + 8 + length].decode().strip("\n").replace(" ", "\u2581"))
        scores.append(score)
        place += 8 + length
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    return tokens, scores
