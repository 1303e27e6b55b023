"""Lossless speculative decoding: a language model that generates faster and says the same words.

    from foreword import LLM, SamplingParams

    print(LLM().generate("The capital of France is", SamplingParams(max_tokens=16))[0].text)

Public names are imported at their first use, so that `import foreword` is quick and loads no torch.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.draft.draft_config import DraftConfig
    from foreword.engine.llm import LLM, LoadedModel, load_model
    from foreword.engine.result import Piece, Result
    from foreword.errors import CapacityError, ConfigError, FidelityError, ForewordError, KernelError, LoadError
    from foreword.sampling.drafting_params import DraftingParams
    from foreword.sampling.grammar import Grammar
    from foreword.sampling.params import SamplingParams
    from foreword.tree.draft_tree import DraftTree

try:
    __version__ = version("foreword")
except PackageNotFoundError:  # run from a source folder that was never installed
    __version__ = "0.0.0"

__all__ = [
    "LLM",
    "CapacityError",
    "ConfigError",
    "DraftConfig",
    "DraftTree",
    "DraftingParams",
    "FidelityError",
    "ForewordError",
    "Grammar",
    "KernelError",
    "LoadError",
    "LoadedModel",
    "Piece",
    "Result",
    "SamplingParams",
    "__version__",
    "load_model",
]

_HOMES = {
    "LLM": "foreword.engine.llm",
    "CapacityError": "foreword.errors",
    "ConfigError": "foreword.errors",
    "DraftConfig": "foreword.draft.draft_config",
    "DraftTree": "foreword.tree.draft_tree",
    "DraftingParams": "foreword.sampling.drafting_params",
    "FidelityError": "foreword.errors",
    "ForewordError": "foreword.errors",
    "Grammar": "foreword.sampling.grammar",
    "KernelError": "foreword.errors",
    "LoadError": "foreword.errors",
    "LoadedModel": "foreword.engine.llm",
    "Piece": "foreword.engine.result",
    "Result": "foreword.engine.result",
    "SamplingParams": "foreword.sampling.params",
    "load_model": "foreword.engine.llm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foreword' has no attribute {name!r}; it has: {', '.join(sorted(_HOMES))}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
