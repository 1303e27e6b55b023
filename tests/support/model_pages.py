"""The table of models in docs/reference/models-and-runtimes.md, made of the families, of the models that tests compare with
transformers, and of what the specs of those say.

    python -m tests.support.model_pages     writes it

`tests/models/test_page.py` holds the page to it.
"""

from dataclasses import dataclass
from pathlib import Path

from foreword.checkpoint.families import FAMILIES
from foreword.checkpoint.hf_config import spec_from_config
from foreword.config import ModelSpec
from tests.support.family_models import CONFIGS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models-and-runtimes.md"
BEGIN, END = "<!-- made by tests/support/model_pages.py: begin -->\n", "<!-- end of models -->"
_TESTS = "../../tests/models/test_torch_logits.py"


@dataclass(frozen=True)
class Row:
    """Models that people know by these names, and their families in `FAMILIES`."""

    models: str
    families: tuple[str, ...]


ROWS = (
    Row("Llama 2 and 3, SmolLM2, TinyLlama", ("llama",)),
    Row("Mistral 7B, Nemo, Small; Ministral 8B", ("mistral", "ministral")),
    Row("Ministral 3", ("ministral3", "mistral3")),
    Row("Qwen2, Qwen2.5", ("qwen2",)),
    Row("Qwen3", ("qwen3",)),
    Row("Gemma 3 (text)", ("gemma3", "gemma3_text")),
    Row("Gemma 2", ("gemma2",)),
    Row("Phi-3, Phi-3.5, Phi-4", ("phi3",)),
    Row("Granite 3, Granite 4 without Mamba layers", ("granite", "granitemoehybrid")),
    Row("SmolLM3", ("smollm3",)),
    Row("OLMo 2, OLMo 3", ("olmo2", "olmo3")),
    Row("GLM-4 (dense)", ("glm4",)),
    Row("Command R7B (Cohere 2)", ("cohere2",)),
    Row("StableLM 2", ("stablelm",)),
)


def configs_of(row: Row) -> list[str]:
    """Names of the tiny models of a row's families."""
    return [name for name, config in CONFIGS.items() if config().model_type in row.families]


def table() -> str:
    """One line a row."""
    head = (
        "| models | `model_type`, GGUF architecture | beyond Llama | compared with transformers as |\n|---|---|---|---|"
    )
    return "\n".join([head, *map(_line, ROWS)])


def with_table(text: str) -> str:
    """The page with its table as it should be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}\n{END}{rest.partition(END)[2]}"


def features(spec: ModelSpec) -> list[str]:
    """What a model has that Llama's layers have not, from its spec."""
    scales = (spec.embedding_scale, spec.residual_scale, spec.logit_scale)
    found = {
        "windows": spec.windows != (None,),
        "a rotary embedding for each kind of layer": len(spec.ropes) > 1,
        "layers without a rotary embedding": any(layer.rope is None for layer in spec.layers),
        "partial rotation": any(rope.num_rotated for rope in spec.ropes),
        "YaRN": any(rope.yarn for rope in spec.ropes),
        "longrope": any(rope.divisors for rope in spec.ropes),
        "query temperature": any(rope.temperature for rope in spec.ropes),
        "norms of queries and keys": spec.qk_norm,
        "norms after both blocks": spec.norms == "post",
        "norms before and after both blocks": spec.norms == "sandwich",
        "parallel blocks": spec.norms == "parallel",
        "LayerNorm": spec.norm_kind == "layer",
        "GELU": spec.activation == "gelu_tanh",
        "soft caps": spec.score_cap is not None or spec.logit_cap is not None,
        "scales": scales != (1.0, 1.0, 1.0) or spec.attention_scale is not None,
        "biases": spec.qkv_bias or spec.o_bias or spec.mlp_bias,
    }
    return [name for name, is_there in found.items() if is_there]


def _line(row: Row) -> str:
    names, found = configs_of(row), {}
    for name in names:
        found |= dict.fromkeys(features(spec_from_config(CONFIGS[name]().to_dict(), name)))
    in_gguf = [name for name in row.families if FAMILIES[name].in_gguf]
    in_hf = [name for name in row.families if FAMILIES[name].in_hf]
    where = ", ".join(f"`{name}`" for name in in_hf) + "; " + (", ".join(f"`{name}`" for name in in_gguf) or "none")
    tests = ", ".join(f"[`{name}`]({_TESTS})" for name in names)
    return f"| {row.models} | {where} | {', '.join(found) or 'nothing'} | {tests} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
