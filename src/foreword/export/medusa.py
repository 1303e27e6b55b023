"""Medusa heads for vLLM up to 0.32 (0.33 has none): outputs over the whole vocabulary, one each or one for all."""

from foreword.errors import ConfigError
from foreword.export.draft_model import whole_head
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource


def vllm_layout(source: DrafterSource, engine: str) -> Layout:
    """The top-1 guesses stay the same: rows that the heads did not have never win."""
    blocks = {name: tensor for name, tensor in source.tensors.items() if name.startswith("blocks.")}
    outputs = {name: tensor for name, tensor in source.tensors.items() if name.startswith("lm_heads.")}
    if not blocks or not outputs:
        raise ConfigError(
            f"{source.path} is not in vLLM's layout; what can be exported are heads of `foreword train medusa`"
        )
    is_shared = len(outputs) == 1
    num_heads = 1 + max(int(name.split(".")[1]) for name in blocks)
    num_layers = 1 + max(int(name.split(".")[3]) for name in blocks)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": source.target.spec.hidden_size,
        "vocab_size": source.vocab_size,
        "truncated_vocab_size": None,
        "num_heads": num_heads,
        "num_hidden_layers": num_layers,
        "original_lm_head": is_shared,
        "medusa_fc_bias": any(name.endswith(".bias") for name in blocks),
        "torch_dtype": source.config.get("torch_dtype", "bfloat16"),
    }
    whole = {"lm_head.weight" if is_shared else name: whole_head(source, rows) for name, rows in outputs.items()}
    notes = ("vLLM takes each head's first guess as a chain; trees stay here.", "vLLM 0.33 and later have no Medusa.")
    return Layout(engine, "medusa", config, {**blocks, **whole}, False, notes=notes)
