"""EAGLE-1. vLLM's layer has no bias and no draft vocabulary, SGLang's must have a bias: a file each."""

from foreword.errors import ConfigError
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource

_TABLES = ("d2t", "t2d")


def vllm_layout(source: DrafterSource, engine: str) -> Layout:
    """The bias of fc goes into a copy of the embedding: W_e (e + W_e^-1 b) = W_e e + b, exactly but for rounding."""
    import torch

    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in (*_TABLES, "fc.bias")}
    notes = []
    if "fc.bias" in source.tensors:
        hidden = source.target.spec.hidden_size
        of_embedding = source.tensors["fc.weight"][:, :hidden].double()
        shift = torch.linalg.solve(of_embedding, source.tensors["fc.bias"].double())
        if not bool(torch.isfinite(shift).all()):
            raise ConfigError("the drafter's fc cannot be solved for its bias, which vLLM does not read; train without")
        own = source.tensors.get("embed_tokens.weight", source.target.tensor("embed.weight"))
        tensors["embed_tokens.weight"] = (own.double() + shift).float()
        notes.append("vLLM's layer has no bias: it went into a copy of the embedding, which stays in float32.")
    notes += _whole_vocabulary(source)
    return Layout(engine, "eagle", _config(source, "EagleLlamaForCausalLM"), tensors, False, notes=tuple(notes))


def sglang_layout(source: DrafterSource, engine: str) -> Layout:
    """With a bias, of zeros where there is none: left out it would stay as it was drawn."""
    import torch

    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in _TABLES}
    weight = source.tensors["fc.weight"]
    tensors.setdefault("fc.bias", torch.zeros(len(weight), dtype=weight.dtype))
    notes = tuple(_whole_vocabulary(source))
    return Layout(
        engine, "eagle", {**_config(source, "LlamaForCausalLMEagle"), "bias": True}, tensors, False, notes=notes
    )


def _config(source: DrafterSource, architecture: str) -> dict[str, object]:
    spec = source.target.spec
    return {
        "architectures": [architecture],
        "model_type": "llama",
        **source.sizes(),
        "max_position_embeddings": spec.context_len,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": source.config.get("torch_dtype", "bfloat16"),
    }


def _whole_vocabulary(source: DrafterSource) -> list[str]:
    if not source.is_reduced:
        return []
    return ["The engine knows no draft vocabulary for EAGLE-1: it proposes from the whole one, with the target's head."]
