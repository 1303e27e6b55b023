"""What a trained drafter's files are, whether they fit a target, and what they gain on a few prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.drafter_folder import drafter_folder, open_tensors
from foreword.checkpoint.drafter_kind import card_of, drafter_kind_of
from foreword.checkpoint.hub import is_hub_name
from foreword.checkpoint.json_file import read_json_if_any
from foreword.checkpoint.paths import is_folder, is_there, local_path
from foreword.errors import ForewordError

if TYPE_CHECKING:
    from foreword.draft.draft_config import DraftConfig
    from foreword.draft.heads.eagle_files import EagleFiles
    from foreword.draft.heads.medusa_files import MedusaFiles
    from foreword.target.load_model import LoadedModel

_MAX_TOKENS = 64
_WEIGHTS = (".pt", ".bin", ".safetensors")


def drafter_kind(path: str) -> str | None:
    """Medusa, medusa2 (tuned with its target), eagle2 (serves EAGLE-1 too), eagle3, a draft model trained here; None for others."""
    from foreword.draft.heads.medusa_files import FILES

    local = local_path(path)
    if is_there(local) and not is_folder(local):
        return "medusa" if local.suffix in _WEIGHTS else None
    if not is_there(local) and not is_hub_name(path):
        return None
    try:
        folder = drafter_folder(path, FILES)
        config = read_json_if_any(folder / "config.json")
        if (kind := drafter_kind_of(config, ())) is not None:
            return kind
        names = open_tensors(folder, FILES)[1]
    except ForewordError:
        return None  # whoever opens it as a model says what is wrong
    return drafter_kind_of(config, names)


def drafter_facts(kind: str, path: str) -> dict[str, Any]:
    """What the files hold, ready for JSON. Sizes in bytes. Errors of opening them pass through."""
    if kind in ("medusa", "medusa2"):
        from foreword.draft.heads.medusa_files import open_heads

        return {**_medusa_facts(open_heads(path)), "drafter": kind, "path": path}
    if kind == "draft_model":
        return {**_model_facts(path), "path": path}
    if kind == "ngram_lm":
        return {**_table_facts(local_path(path)), "path": path}
    from foreword.draft.heads.eagle_files import EagleFiles

    return {**_eagle_facts(kind, EagleFiles(path)), "path": path}


def fit_facts(
    kind: str, path: str, target: "LoadedModel", measures: bool, draft_vocab: str | None = None
) -> dict[str, Any]:
    """Whether it drafts for this target, else why not; and, if asked, tokens per step and acceptance on a few prompts."""
    from foreword.bench.demo_prompts import PROMPTS
    from foreword.engine.llm import LLM
    from foreword.sampling.params import SamplingParams

    facts: dict[str, Any] = {
        "target": target.checkpoint.source, "fits": True, "reason": None, "draft_vocab": draft_vocab, "measured": None,
    }  # fmt: skip
    try:
        llm = LLM(target, _trimmed(kind, path, draft_vocab), prefix_cache=False)
    except ForewordError as error:
        return facts | {"fits": False, "reason": str(error)}
    if not measures:
        return facts
    prompts: Any = list(PROMPTS.values())
    if target.tokenizer.has_chat_template:
        prompts = [[{"role": "user", "content": text}] for text in prompts]
    results = llm.generate(prompts, SamplingParams(max_tokens=_MAX_TOKENS))
    by_name = dict(zip(PROMPTS, results, strict=True))
    steps = sum(result.stats.num_steps for result in results)
    drafted, accepted = _depths([result.stats for result in results])
    return facts | {
        "measured": {
            "runtime": target.choice.name,
            "dtype": target.choice.dtype,
            "num_speculative_tokens": llm.config.num_speculative_tokens,
            "num_prompts": len(results),
            "new_tokens": sum(result.stats.new_tokens for result in results),
            "tokens_per_step": sum(result.stats.new_tokens - 1 for result in results) / max(1, steps),
            "tokens_per_step_by_prompt": {name: result.stats.tokens_per_step for name, result in by_name.items()},
            "accept_rate_at_depth": [a / d for a, d in zip(accepted, drafted, strict=True)],
        }
    }


def _depths(stats: list[Any]) -> tuple[list[int], list[int]]:
    """Steps that drafted, and that accepted, at each depth, over all requests."""
    depth = max((len(one.drafted_at_depth) for one in stats), default=0)
    sums = ([0] * depth, [0] * depth)
    for one in stats:
        for total, own in zip(sums, (one.drafted_at_depth, one.accepted_at_depth), strict=True):
            for i, count in enumerate(own):
                total[i] += count
    return sums


def _medusa_facts(files: "MedusaFiles") -> dict[str, Any]:
    block = files.blocks[0]
    outputs = {0: "the target's head", 1: "one for all heads", len(files.blocks): "one per head"}[len(files.outputs)]
    card, config = files.card, files.config
    return {
        "drafter": "medusa",
        "layout": files.layout,
        "num_heads": len(files.blocks),
        "layers_a_head": len(block),
        "has_biases": block[0].bias is not None,
        "outputs": "one per head" if len(files.outputs) == len(files.blocks) else outputs,
        "hidden_size": block[0].weight.shape[0],
        "draft_vocab_size": len(files.outputs[0]) if files.outputs else None,
        "has_token_map": files.token_map is not None,
        "tree": f"calibrated, {len(card['choices'])} nodes" if "choices" in card else "generic, 63 nodes",
        "head_accuracies": [row[0] for row in card.get("accuracies", [])],
        "stored_bytes": files.num_bytes,
        "made_for": card.get("target") or config.get("base_model_name_or_path"),
        "notes": [*files.notes, *_full_model_note(files.layout)],
    }


def _full_model_note(layout: str) -> list[str]:
    if layout != "full model":
        return []
    return ["the folder holds the model that the heads were tuned with; for another target their guesses are worse"]


def _eagle_facts(kind: str, files: "EagleFiles") -> dict[str, Any]:
    config = files.config
    inner: Mapping[str, Any] = config.get("transformer_layer_config") or config
    nested = config.get("eagle_config")
    taps = config.get("eagle_aux_hidden_state_layer_ids")
    if taps is None and isinstance(nested, Mapping):
        taps = nested.get("eagle_aux_hidden_state_layer_ids")
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    card = config.get("foreword") or {}
    tensors = [files.tensor(name) for name in files]
    return {
        "drafter": kind,
        "layout": "speculators" if "speculators_model_type" in config or inner is not config else "official",
        "hidden_size": inner.get("hidden_size"),
        "num_layers": inner.get("num_hidden_layers", 1),
        "num_heads": inner.get("num_attention_heads"),
        "fc": list(files.tensor("fc.weight").shape),
        "vocab_size": inner.get("vocab_size"),
        "draft_vocab_size": next((len(files.tensor(n)) for n in ("head.weight", "d2t") if n in files), None),
        "options": _options(config),
        "taps": None if kind != "eagle3" else taps or "2, L/2 and L-3 of L layers (the default)",
        "borrows": [name for name in ("embed.weight", "head.weight") if name not in files],
        "stored_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "made_for": card.get("target") or verifier.get("name_or_path"),
        "notes": [],
    }


def _options(config: Mapping[str, Any]) -> list[str]:
    """What an EAGLE-3 network computes otherwise than its authors'."""
    from foreword.draft.heads.eagle_network import stream_norm

    own = [name for name in ("norm_before_residual", "norm_output") if config.get(name)]
    return [*([norm] if (norm := stream_norm(config)) else []), *own]


def _table_facts(folder: Path) -> dict[str, Any]:
    from foreword.draft.lookup.ngram_table import load_table

    table, card = load_table(folder), card_of(read_json_if_any(folder / "config.json"))
    return {
        "drafter": "ngram_lm",
        "layout": f"contexts of 1 to {table.order} tokens",
        "num_contexts": len(table.keys),
        "num_continuations": len(table.ids),
        "stored_bytes": table.num_bytes,
        "made_for": card.get("target"),
        "notes": [],
    }


def _model_facts(path: str) -> dict[str, Any]:
    from foreword.checkpoint.opened import open_checkpoint
    from foreword.draft.model.trained_model import is_trained_model

    if is_trained_model(path):
        return _trained_facts(path)

    checkpoint = open_checkpoint(path)
    return {
        "drafter": "draft_model",
        "layout": checkpoint.spec.family,
        "hidden_size": checkpoint.spec.hidden_size,
        "num_layers": checkpoint.spec.num_layers,
        "vocab_size": checkpoint.tokenizer.vocab_size,
        "num_parameters": checkpoint.spec.num_parameters,
        "stored_bytes": checkpoint.num_bytes,
        "made_for": None,
        "notes": [],
    }


def _trained_facts(path: str) -> dict[str, Any]:
    from foreword.draft.model.trained_model import TrainedModelFiles

    files = TrainedModelFiles(path)
    return {
        "drafter": "draft_model",
        "layout": f"{files.spec.family}, beside its target",
        "hidden_size": files.spec.hidden_size,
        "num_layers": files.spec.num_layers,
        "vocab_size": files.spec.vocab_size,
        "draft_vocab_size": files.spec.num_logits,
        "borrows": [name for name in ("embed.weight", "head.weight") if not files.has_tensor(name)],
        "stored_bytes": files.num_bytes,
        "made_for": files.card.get("target"),
        "notes": [],
    }


def _trimmed(kind: str, path: str, draft_vocab: str | None) -> "DraftConfig":
    """The drafter with its head trimmed to a list of tokens, where one is named."""
    from foreword.draft.draft_config import DraftConfig

    return DraftConfig(method=kind, path=path, options={} if draft_vocab is None else {"draft_vocab": draft_vocab})


def trim_notes(kind: str, path: str, draft_vocab: str, target: "LoadedModel") -> list[str]:
    """How many tokens are left of the vocabulary; `ConfigError` for a list, or a drafter, that cannot be meant."""
    from foreword.draft.model.draft_vocab import drafted_ids

    _trimmed(kind, path, draft_vocab)
    ids = drafted_ids(draft_vocab, target)
    assert ids is not None, "a list is named"
    size = target.checkpoint.spec.vocab_size
    return [f"{draft_vocab}: {len(ids):,} of the target's {size:,} tokens are drafted, end and special ones included"]


def pairing_notes(path: str, target: "LoadedModel") -> list[str]:
    """How a draft model's tokens go with the target's; nothing of one that was trained for its target."""
    from foreword.checkpoint.opened import open_checkpoint
    from foreword.checkpoint.pairing import pair
    from foreword.draft.model.trained_model import is_trained_model
    from foreword.target.load_model import vocabulary_of

    if is_trained_model(path):
        return []

    return list(pair(target.vocabulary, vocabulary_of(open_checkpoint(path))).notes)
