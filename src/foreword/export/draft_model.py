"""A draft model that stands alone: with embedding, head and the target's tokenizer, as every engine reads it."""

from typing import TYPE_CHECKING

from foreword.checkpoint.name_map import HF_NAMES
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource

if TYPE_CHECKING:
    from torch import Tensor

EMBED, HEAD = HF_NAMES["embed.weight"], HF_NAMES["head.weight"]


def hf_layout(source: DrafterSource, engine: str) -> Layout:
    """The embedding is the target's unless it has its own; so is the head, whose rows it used."""
    target, spec = source.target, source.target.spec
    tensors = {name: tensor for name, tensor in source.tensors.items() if name != "d2t"}
    notes = []
    tensors.setdefault(EMBED, target.tensor("embed.weight").bfloat16())
    own_rows = tensors.pop(HEAD, None)
    is_tied = own_rows is None and spec.tied_head
    if own_rows is not None:
        tensors[HEAD] = whole_head(source, own_rows)
    elif not is_tied:
        tensors[HEAD] = target.tensor("head.weight").bfloat16()
    if source.is_reduced:
        notes.append("Engines know no draft vocabulary for a draft model: it proposes from the whole one.")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **source.sizes(),
        "max_position_embeddings": spec.context_len,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": is_tied,
        "torch_dtype": source.config.get("torch_dtype", "bfloat16"),
        "eos_token_id": list(target.eos_token_ids),
    }
    same = not source.is_reduced
    return Layout(engine, "draft_model", config, tensors, same, needs_tokenizer=True, notes=tuple(notes))


def whole_head(source: DrafterSource, rows: "Tensor") -> "Tensor":
    """The head over the whole vocabulary: where there was no row, the mean of the rows.

    The mean's logit is the mean of the others' logits, so it is never the largest.
    """
    ids = source.draft_ids
    if ids is None:
        return rows
    whole = rows.float().mean(dim=0).to(rows.dtype).repeat(source.vocab_size, 1)
    whole[ids] = rows
    return whole
