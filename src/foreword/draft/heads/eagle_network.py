"""From an EAGLE folder and a target to a network that drafts for it.

Every misfit is refused with its reason: another hidden size, vocabulary or tap than the target's, or an option that
would be left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foreword.checkpoint.drafter_kind import card_of
from foreword.checkpoint.families import FAMILIES, hf_names
from foreword.checkpoint.hf_config import spec_from_config
from foreword.checkpoint.reading import reading
from foreword.checkpoint.shared_weights import BorrowedWeights
from foreword.checkpoint.typed_keys import Options
from foreword.config import ModelSpec, short_repr
from foreword.draft.heads.eagle_files import EagleFiles, check_shapes
from foreword.draft.heads.eagle_fusion import Fusion, StreamFusion, StreamNorms, TokenFusion
from foreword.draft.heads.eagle_reader import EagleReader
from foreword.draft.model.draft_vocab import TrimmedHead, check_untrimmed
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.runtime.base import Runtime, WeightSource
from foreword.sampling.draft_sampling import DraftVocab

_STREAM_NORMS = ("norm_before_fc", "fc_norm")
DEFAULT_CONTEXT = 2048  # of a folder that names none: what the methods' authors train with


@dataclass(frozen=True, eq=False)
class EagleNetwork:
    """A network in memory, and what its folder says about using it."""

    reader: EagleReader
    vocab: DraftVocab
    taps: tuple[int, ...]  # auxiliary hidden states of the target that it reads; none: the final norm's output
    settings: Mapping[str, Any]  # config.json's "foreword" object


def load_network(
    files: EagleFiles,
    is_eagle3: bool,
    target: ModelSpec,
    theirs: WeightSource,
    runtime: Runtime,
    draft_ids: Tensor | None = None,
) -> EagleNetwork:
    """Build it beside a target.

    Args:
        files: the opened folder.
        is_eagle3: which of the two networks is wanted.
        target: what the target is.
        theirs: the target's weights, for what the folder leaves out.
        runtime: what the target runs on.
        draft_ids: the only tokens to draft, ascending; those of its head unless given [frspec25].
    """
    with reading(files.path):
        return _build(files, is_eagle3, target, theirs, runtime, draft_ids)


def _build(
    files: EagleFiles,
    is_eagle3: bool,
    target: ModelSpec,
    theirs: WeightSource,
    runtime: Runtime,
    draft_ids: Tensor | None,
) -> EagleNetwork:
    if ("layers.0.hidden_norm.weight" in files) != is_eagle3:
        found, name = ("EAGLE-1 or EAGLE-2", "eagle2") if is_eagle3 else ("EAGLE-3", "eagle3")
        raise UnsupportedModelError(f"{files.path} holds an {found} network; use it as {name}={files.path}")
    options = Options(files.config, str(files.path))
    taps = taps_of(files.config, target) if is_eagle3 else ()
    spec = _spec(files, is_eagle3, target)
    ids = id_map(files, target.vocab_size)
    weights: WeightSource = BorrowedWeights(files, theirs, _borrowed(is_eagle3, target), ids)
    norms = norm_names(files.config, len(taps))
    _check(files, weights, spec, target, len(taps), norms)
    check_untrimmed(files.path, None if ids is None and not is_eagle3 else spec.num_logits, draft_ids)
    if draft_ids is not None:
        ids, spec, weights = draft_ids, replace(spec, head_size=len(draft_ids)), TrimmedHead(weights, draft_ids)
    decoder = runtime.decoder(spec, weights)
    bias = files.tensor("fc.bias") if "fc.bias" in files else None
    fc = runtime.projection(files.tensor("fc.weight").float(), None if bias is None else bias.float())
    fusion: Fusion
    if is_eagle3:
        fusion = StreamFusion(fc, StreamNorms([files.tensor(n) for n in norms], spec.norm_eps) if norms else None)
    else:
        fusion = TokenFusion(fc, _embedding(weights, runtime))
    reader = EagleReader(decoder, fusion, norms_state=options.flag("norm_output"))
    return EagleNetwork(reader, DraftVocab(target.vocab_size, spec.num_logits, ids), taps, card_of(files.config))


def taps_of(config: Mapping[str, Any], target: ModelSpec) -> tuple[int, ...]:
    """Which streams EAGLE-3 reads: inputs of layers 2, L // 2 and L - 3 of L unless the folder names others [eagle3]."""
    nested = config.get("eagle_config")
    taps = config.get("eagle_aux_hidden_state_layer_ids")
    if taps is None and isinstance(nested, Mapping):
        taps = nested.get("eagle_aux_hidden_state_layer_ids")
    num_layers = target.num_layers
    if taps is None:
        taps = [2, num_layers // 2, num_layers - 3]
    if (
        not isinstance(taps, list | tuple)
        or not taps
        or not all(type(tap) is int and 0 <= tap <= num_layers for tap in taps)
        or len(set(taps)) != len(taps)
    ):
        raise CheckpointError(
            f"the drafter reads the target's streams {short_repr(taps)}; allowed: different layers from 0 to {num_layers}, since "
            f"the target has {num_layers} layers; was it made for another model?"
        )
    return tuple(taps)


def stream_norm(config: Mapping[str, Any]) -> str | None:
    """How EAGLE-3 norms the streams before fc: "norm_before_fc" (all as one), "fc_norm" (each); None where it does not."""
    nested = config.get("eagle_config")
    places = (config, nested) if isinstance(nested, Mapping) else (config,)
    tables = [Options(place, "the drafter") for place in places]
    named = [name for name in _STREAM_NORMS if any(table.flag(name) for table in tables)]
    if len(named) > 1:
        raise CheckpointError(f"the drafter's config.json sets {' and '.join(named)}; allowed: one of them, or none")
    return named[0] if named else None


def norm_names(config: Mapping[str, Any], num_taps: int) -> list[str]:
    """The tensors of these norms, in the order of what they norm."""
    kind = stream_norm(config)
    if kind is not None and num_taps == 0:
        raise UnsupportedModelError(f"the drafter's config.json sets {kind}, which only EAGLE-3 networks have")
    return {
        None: [],
        "norm_before_fc": ["input_norm.weight"],
        "fc_norm": [f"fc_norm.{i}.weight" for i in range(num_taps)],
    }[kind]


def id_map(files: EagleFiles, vocab_size: int) -> Tensor | None:
    """The target's id of each row of the head; None where the rows are the target's own.

    `CheckpointError` unless the ids ascend within the vocabulary and are those that `t2d` marks.
    """
    if "d2t" not in files:
        return None
    offsets = files.tensor("d2t").long()
    ids = offsets + torch.arange(len(offsets))
    problem = None
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        problem = f"names tokens outside the target's 0 to {vocab_size - 1}"
    elif bool((ids.diff() <= 0).any()):
        problem = "names tokens that do not ascend"
    elif "t2d" in files and not torch.equal(files.tensor("t2d").bool().nonzero()[:, 0], ids):
        problem = "does not name the tokens that t2d marks"
    if problem:
        raise CheckpointError(f"{files.path}: the table d2t {problem}; was it made for another model?")
    return ids


def _spec(files: EagleFiles, is_eagle3: bool, target: ModelSpec) -> ModelSpec:
    """What the layer is, from config.json and from which tensors there are."""
    options = Options(files.config, str(files.path))
    inner = options.table("transformer_layer_config").values or files.config
    family = inner.get("model_type")
    plain = {
        "num_hidden_layers": 1,
        "max_position_embeddings": DEFAULT_CONTEXT,
        "vocab_size": target.vocab_size,
        **inner,
    }
    plain |= {
        "model_type": family if isinstance(family, str) and _is_layer_like(family) else "llama",
        "architectures": None,
        "attention_bias": None,  # whether there are biases is seen from the tensors
        "tie_word_embeddings": False,
    }
    spec = spec_from_config(plain, str(files.path))
    if spec.vocab_size != target.vocab_size:
        raise CheckpointError(
            f"{files.path} is made for a vocabulary of {spec.vocab_size} tokens; the target has {target.vocab_size}"
        )
    return replace(
        spec,
        qkv_bias="layers.0.q.bias" in files,
        qk_norm="layers.0.q_norm.weight" in files,
        joins_embedding=is_eagle3,
        norms_residual=is_eagle3 and options.flag("norm_before_residual"),
        has_first_norm="layers.0.attn_norm.weight" in files,
        has_final_norm="norm.weight" in files,
        head_size=_head_size(files),
    )


def _is_layer_like(family: str) -> bool:
    """Whether a drafter that calls itself so has layers like Llama's; others name the target's family, not their own."""
    return family in hf_names() and FAMILIES[family].is_llama_like


def _head_size(files: EagleFiles) -> int | None:
    """Rows of the head: its own, else the target's that d2t names [frspec25]; None for all of the target's."""
    for name in ("head.weight", "d2t"):
        if name in files:
            return len(files.tensor(name))
    return None


def _borrowed(is_eagle3: bool, target: ModelSpec) -> dict[str, str]:
    """What may be the target's own."""
    head = "embed.weight" if target.tied_head else "head.weight"
    return {"embed.weight": "embed.weight"} | ({} if is_eagle3 else {"head.weight": head})


def _check(
    files: EagleFiles, weights: WeightSource, spec: ModelSpec, target: ModelSpec, num_taps: int, norms: Sequence[str]
) -> None:
    """Every tensor is there in its shape, and none that would be left out."""
    hidden = spec.hidden_size
    is_eagle3 = spec.joins_embedding
    width = num_taps * target.hidden_size if is_eagle3 else hidden + target.hidden_size
    found = files.tensor("fc.weight")
    if found.ndim == 2 and found.shape[1] != width and found.shape[0] == hidden:
        raise CheckpointError(
            f"{files.path}: fc reads {found.shape[1]} values; this target gives {width} ({num_taps or 2} times its hidden "
            f"size of {target.hidden_size}); was it made for another model?"
        )
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, width), "embed.weight": (spec.vocab_size, hidden)}
    if not is_eagle3 and hidden != target.hidden_size:
        raise CheckpointError(
            f"{files.path} predicts features of {hidden} values; the target's have {target.hidden_size}; was it made for "
            f"another model?"
        )
    shapes["head.weight"] = (spec.num_logits, hidden)
    if is_eagle3:
        shapes["norm.weight"] = (hidden,)
        shapes |= dict.fromkeys(norms, (width // len(norms),) if norms else ())
    optional = {"fc.bias", "d2t", "t2d", "norm.weight"}
    for layer in range(spec.num_layers):
        shapes |= _layer_shapes(spec, layer)
    check_shapes(files, weights, shapes)
    if spec.head_size is not None and spec.head_size != spec.vocab_size and "d2t" not in files:
        raise CheckpointError(
            f"{files.path}: the head has {spec.head_size} rows, the target {spec.vocab_size}, and no table d2t says "
            f"which tokens they are"
        )
    if "d2t" in files and len(files.tensor("d2t")) != spec.num_logits:
        raise CheckpointError(
            f"{files.path}: d2t has {len(files.tensor('d2t'))} entries, the head {spec.num_logits} rows"
        )
    if unused := sorted(set(files) - shapes.keys() - optional):
        if unused[0].startswith(("input_norm.", "fc_norm.")):
            raise CheckpointError(
                f"{files.path} has the tensor {unused[0]!r}, a norm of the streams before fc; config.json sets "
                f"{stream_norm(files.config) or 'neither ' + ' nor '.join(_STREAM_NORMS)}, and no norm of this name goes with that"
            )
        raise UnsupportedModelError(
            f"{files.path} has tensors that foreword's EAGLE layer does not use: {', '.join(unused[:3])}; leaving them "
            f"out would lower its acceptance"
        )


def _layer_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, inputs, middle = spec.hidden_size, spec.qkv_input_size(layer), spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "q.weight": (queries, inputs),
        "k.weight": (keys, inputs),
        "v.weight": (keys, inputs),
        "o.weight": (hidden, queries),
        "mlp_norm.weight": (hidden,),
        "gate.weight": (middle, hidden),
        "up.weight": (middle, hidden),
        "down.weight": (hidden, middle),
    }
    if spec.has_first_norm or layer > 0:
        shapes["attn_norm.weight"] = (hidden,)
    if spec.joins_embedding and layer == 0:
        shapes["hidden_norm.weight"] = (hidden,)
    if spec.qkv_bias:
        shapes |= {"q.bias": (queries,), "k.bias": (keys,), "v.bias": (keys,)}
    if spec.qk_norm:
        shapes |= {"q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,)}
    return {f"layers.{layer}.{name}": shape for name, shape in shapes.items()}


def _embedding(weights: WeightSource, runtime: Runtime) -> Tensor:
    """The table that EAGLE-1's fc reads, in bfloat16 where the runtime computes with fewer bits than float32."""
    table = weights.tensor("embed.weight")
    return table if runtime.dtype in ("float32", "float64") else table.to(torch.bfloat16)
