"""A folder of random weights in the shape of a real model: its speed and memory are real, its words are not.

    python -m benchmarks.random_model FOLDER --shape 7b --tokenizer MODEL
    python -m benchmarks.random_model FOLDER --hidden 512 --intermediate 1536 --layers 8 --heads 8 --kv-heads 2 --vocab 49152

Written layer by layer, a file each, so that it takes the memory of one layer. Values are drawn once and shifted from tensor to
tensor: no two rows of a matrix are alike, and 15 GB are written as fast as the disk takes them.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPES = {  # as their configurations say
    "1b": {"hidden": 2048, "intermediate": 8192, "layers": 16, "heads": 32, "kv_heads": 8, "vocab": 128256},
    "7b": {"hidden": 3584, "intermediate": 18944, "layers": 28, "heads": 28, "kv_heads": 4, "vocab": 152064},
    "8b": {"hidden": 4096, "intermediate": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "vocab": 128256},
}
_DRAWN = 1 << 24  # values
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class Values:
    """Random values, bfloat16."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._drawn = (0.02 * torch.randn(_DRAWN, generator=generator)).bfloat16()
        self._start = 0

    def of(self, *shape: int) -> torch.Tensor:
        """A tensor of them."""
        self._start = (self._start + 7919) % _DRAWN
        count = torch.Size(shape).numel()
        places = self._drawn.roll(-self._start)
        return places.repeat(-(-count // _DRAWN))[:count].reshape(shape).contiguous()


def write_model(folder: Path, sizes: Mapping[str, int], tokenizer: Path | None = None) -> None:
    """Config, one file a layer, one for the embedding and one for the head; the tokenizer is copied from another model."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden, inner, dim = sizes["hidden"], sizes["intermediate"], sizes["hidden"] // sizes["heads"]
    keys = sizes["kv_heads"] * dim
    values, index = Values(), dict[str, str]()

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name)
        index.update(dict.fromkeys(tensors, name))

    for layer in range(sizes["layers"]):
        prefix = f"model.layers.{layer}."
        matrices = {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        tensors = {f"{prefix}{name}.weight": values.of(*shape) for name, shape in matrices.items()}
        norms = ("input_layernorm", "post_attention_layernorm")
        tensors |= {f"{prefix}{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in norms}
        save(f"layer-{layer:03}.safetensors", tensors)
    save("embedding.safetensors", {"model.embed_tokens.weight": values.of(sizes["vocab"], hidden)})
    norm = torch.ones(hidden, dtype=torch.bfloat16)
    save("head.safetensors", {"lm_head.weight": values.of(sizes["vocab"], hidden), "model.norm.weight": norm})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(_config(sizes)))
    for name in _TOKENIZER_FILES if tokenizer is not None else ():
        if tokenizer is not None and (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)


def _config(sizes: Mapping[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "vocab_size": sizes["vocab"],
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--tokenizer", type=Path, help="folder of a model whose tokenizer is copied")
    for name in SHAPES["7b"]:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    args = parser.parse_args()
    given = {name: getattr(args, name) for name in SHAPES["7b"] if getattr(args, name) is not None}
    sizes = {**(SHAPES[args.shape] if args.shape else {}), **given}
    if missing := SHAPES["7b"].keys() - sizes.keys():
        parser.error(f"give --shape, or also: {', '.join(f'--{name}' for name in sorted(missing))}")
    write_model(args.folder, sizes, args.tokenizer)


if __name__ == "__main__":
    main()
