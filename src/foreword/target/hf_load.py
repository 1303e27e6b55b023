"""Models that transformers holds: one handed over in memory, or a folder of an architecture that foreword lacks."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.folder import open_shards
from foreword.checkpoint.folder_tokenizer import SPECIAL_ROLES, tokenizer_from_folder
from foreword.checkpoint.hf_config import eos_ids, usable_ends
from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.reading import reason_of
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.checkpoint.typed_keys import Options
from foreword.config import ModelSpec
from foreword.errors import CheckpointError, ConfigError, UnsupportedModelError
from foreword.runtime.select import RuntimeChoice
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.target.load_model import LoadedModel
from foreword.target.model_source import AdoptedModel

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

FLOATS = ("F32", "F16", "BF16", "F64")
_SHOWN = 3  # names that a message lists

# Rotary embeddings whose frequencies depend on the longest text of a pass, so on what is drafted and on who shares it.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def adopt_model(model: Any, tokenizer: Any, source: str | None = None) -> LoadedModel:
    """Take over a transformers model and its tokenizer: the weights are shared, the model is put into eval mode.

    Args:
        model: a loaded causal language model (`AutoModelForCausalLM`), on the device and in the dtype it is to run with.
        tokenizer: its tokenizer (`AutoTokenizer`), or a foreword `Tokenizer`.
        source: what to call it in messages; its own name unless given.

    Raises:
        ConfigError: these are not a model and a tokenizer that transformers made.
        UnsupportedModelError: the model cannot score draft trees; says why.
    """
    from transformers import PreTrainedModel

    from foreword.target.hf_check import checked_decoder, refuse_known

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"the model is a {type(model).__name__}; allowed: a transformers model, e.g. from "
            f"AutoModelForCausalLM.from_pretrained (PEFT models: merge_and_unload() first)"
        )
    source = source or str(getattr(model.config, "name_or_path", "") or type(model).__name__)
    own_tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else adopt_tokenizer(tokenizer, source)
    refuse_known(model, source)
    model.eval()
    decoder, note = checked_decoder(model, spec_of(model, source), source)
    if note is not None:
        logger.warning(note)
    dtype, device = str(model.dtype).removeprefix("torch."), str(decoder.device)
    generation = model.generation_config.to_dict() if model.generation_config is not None else {}
    tables = {"its generation_config": generation, "its config": model.config.to_dict()}
    ends = eos_ids(tables, decoder.spec.vocab_size, source)
    if not ends and (own := own_tokenizer.eos_token_id) is not None:
        ends = tuple(usable_ends([own], decoder.spec.vocab_size, f"{source}: the tokenizer's eos_token"))
    return LoadedModel(
        AdoptedModel(decoder.spec, source, ends, own_tokenizer),
        RuntimeChoice("torch", dtype, device, "a transformers model"),
        decoder,
        TorchRuntime(device, dtype),
    )


def load_folder(folder: Path, source: str, choice: RuntimeChoice) -> LoadedModel:
    """Load a Hugging Face folder through transformers. Code that comes with a model is not run.

    Raises:
        CheckpointError: tensors are missing, left over, or of another shape or kind than the model's.
        UnsupportedModelError: transformers cannot load it, or it cannot read trees of drafts.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = tokenizer_from_folder(folder, source)
    stored = {name: tensor.dtype for file in open_shards(folder) for name, tensor in file.tensors.items()}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, choice.dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report names them, the error does not
        )
        model, report = loaded
        model = model.to(choice.device)
    except Exception as error:  # an unknown architecture, a missing package, damaged files: each raises its own kind
        raise UnsupportedModelError(f"{source} cannot be loaded by transformers either: {reason_of(error)}") from error
    _refuse_misfits(model, report, stored, source)
    return replace(adopt_model(model, tokenizer, source), choice=choice)


_MISFITS = {
    "missing_keys": "lacks tensors of the model",
    "unexpected_keys": "has tensors that the model does not use",
    "mismatched_keys": "has tensors of other shapes than the model's",
    "error_msgs": "cannot be loaded whole",
}


def _refuse_misfits(model: Any, report: Mapping[str, Any], stored: Mapping[str, str], source: str) -> None:
    """`CheckpointError` for what transformers would fill with random numbers, leave out, or take for other numbers."""
    for key, words in _MISFITS.items():
        if found := sorted(str(one[0] if isinstance(one, tuple) else one) for one in report.get(key) or ()):
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise CheckpointError(
                f"{source} {words}: {', '.join(found[:_SHOWN])}{more}; its words would not be the model's: fetch it again"
            )
    if getattr(model.config, "quantization_config", None) is not None:
        return
    parameters = {name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    parameters |= {name.removeprefix(f"{model.base_model_prefix}.") for name in parameters}
    for name, dtype in stored.items():
        if dtype not in FLOATS and (name in parameters or name.endswith(".weight")):
            raise CheckpointError(
                f"{source}: tensor {name} has dtype {dtype}, which no parameter of this model has; allowed: "
                f"{', '.join(FLOATS)}; the file is damaged"
            )


def is_causal_folder(folder: Path) -> bool:
    """Whether a folder says that it holds a model that continues a text."""
    if not (folder / "config.json").is_file():
        return False
    names = Options(read_json(folder / "config.json"), str(folder)).texts("architectures")
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def spec_of(model: Any, source: str) -> ModelSpec:
    """What the model is. Layers are its own: the sizes that describe foreword's are for people and for counting rows."""
    config = model.config.get_text_config(decoder=True)
    hidden_size, num_heads = config.hidden_size, config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    if not isinstance(num_kv_heads, int) or num_heads % num_kv_heads:
        num_kv_heads = num_heads
    head_dim = getattr(config, "head_dim", None)
    embedding = model.get_input_embeddings().weight
    intermediate_size = getattr(config, "intermediate_size", None)
    return ModelSpec(
        family=str(config.model_type),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size if isinstance(intermediate_size, int) else 4 * hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim if isinstance(head_dim, int) else max(2, hidden_size // num_heads // 2 * 2),
        vocab_size=min(embedding.shape[0], config.vocab_size),
        context_len=_context_len(config, source),
        tied_head=bool(getattr(config, "tie_word_embeddings", False)),
        num_counted_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _context_len(config: Any, source: str) -> int:
    """Most tokens of a text; less where its rotary embedding changes with the length."""
    context_len = getattr(config, "max_position_embeddings", None)
    if not isinstance(context_len, int) or context_len < 1:
        raise UnsupportedModelError(
            f"{source} does not say how long its context is (max_position_embeddings is {context_len!r}); set it in "
            f"model.config before handing the model over"
        )
    ropes = getattr(config, "rope_parameters", None) or {}
    tables = [table for table in (ropes, *ropes.values()) if isinstance(table, Mapping)]
    for table in tables:
        if table.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = table.get("original_max_position_embeddings") or context_len
            if original < context_len:
                logger.warning(
                    f"{source}: rope type {table['rope_type']} changes for texts beyond {original} tokens, which drafts "
                    f"must not depend on; its context is cut from {context_len} to {original} tokens"
                )
                context_len = original
    return context_len


def adopt_tokenizer(tokenizer: Any, source: str) -> Tokenizer:
    """A transformers tokenizer as foreword's: a copy of its backend, its special tokens, its chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            f"the tokenizer is a {type(tokenizer).__name__}, which has no fast backend; load a fast one with "
            f"AutoTokenizer.from_pretrained(..., use_fast=True), or convert it and save its tokenizer.json"
        )
    named = tokenizer.special_tokens_map
    special_tokens = {role: str(named[role]) for role in SPECIAL_ROLES if isinstance(named.get(role), str)}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):  # several, by name
        template = template.get("default")
    return Tokenizer(_copied(backend, source), special_tokens, template, source)


def _copied(backend: "tokenizers.Tokenizer", source: str) -> "tokenizers.Tokenizer":
    """A copy: foreword switches truncation and padding off, which its owner may want."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(backend.to_str())
    except Exception as error:  # parts written in Python cannot be copied; the library raises plain Exception
        raise CheckpointError(
            f"the tokenizer of {source} cannot be copied ({error}); save it and load it again"
        ) from error
