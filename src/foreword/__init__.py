"""Lossless speculative decoding: faster generation with the tokens of plain decoding.

    from foreword import LLM, SamplingParams

    print(LLM().generate("The capital of France is", SamplingParams(max_tokens=16))[0].text)

Public names are imported at their first use, so that `import foreword` is quick and loads no torch.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.checkpoint.tokenizer import Tokenizer
    from foreword.draft.draft_config import DraftConfig
    from foreword.engine.async_llm import AsyncLLM
    from foreword.engine.async_stream import AsyncStream
    from foreword.engine.llm import LLM
    from foreword.engine.prompts import Message, Prompt
    from foreword.engine.result import FinishReason, Piece, RequestId, Result, TokenLogprob
    from foreword.engine.snapshot import DraftSnapshot, EngineSnapshot, HistogramSnapshot
    from foreword.engine.stats import RequestStats
    from foreword.errors import (
        CapacityError,
        CheckpointError,
        ClosedError,
        ConfigError,
        DownloadError,
        FidelityError,
        ForewordError,
        KernelError,
        LoadError,
        ModelNotFoundError,
        PromptTooLongError,
        QueueFullError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from foreword.sampling.drafting_params import DraftingParams
    from foreword.sampling.grammar import Grammar
    from foreword.sampling.params import SamplingParams
    from foreword.sampling.user_processors import LogitsProcessor, StatefulProcessor
    from foreword.target.load_model import LoadedModel, load_model
    from foreword.tree.draft_tree import DraftTree
    from foreword.verify.base import Verifier

try:
    __version__ = version("foreword")
except PackageNotFoundError:  # run from a source folder that was never installed
    __version__ = "0.0.0"

__all__ = [
    "AsyncLLM",
    "AsyncStream",
    "CapacityError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "DownloadError",
    "DraftConfig",
    "DraftSnapshot",
    "DraftTree",
    "DraftingParams",
    "EngineSnapshot",
    "FidelityError",
    "FinishReason",
    "ForewordError",
    "Grammar",
    "HistogramSnapshot",
    "KernelError",
    "LLM",
    "LoadError",
    "LoadedModel",
    "LogitsProcessor",
    "Message",
    "ModelNotFoundError",
    "Piece",
    "Prompt",
    "PromptTooLongError",
    "QueueFullError",
    "RequestId",
    "RequestStats",
    "Result",
    "SamplingParams",
    "StatefulProcessor",
    "TokenLogprob",
    "Tokenizer",
    "UnknownNameError",
    "UnsupportedModelError",
    "Verifier",
    "load_model",
    "__version__",
]

_HOMES = {
    "AsyncLLM": "foreword.engine.async_llm",
    "AsyncStream": "foreword.engine.async_stream",
    "CapacityError": "foreword.errors",
    "CheckpointError": "foreword.errors",
    "ClosedError": "foreword.errors",
    "ConfigError": "foreword.errors",
    "DownloadError": "foreword.errors",
    "DraftConfig": "foreword.draft.draft_config",
    "DraftSnapshot": "foreword.engine.snapshot",
    "DraftTree": "foreword.tree.draft_tree",
    "DraftingParams": "foreword.sampling.drafting_params",
    "EngineSnapshot": "foreword.engine.snapshot",
    "FidelityError": "foreword.errors",
    "FinishReason": "foreword.engine.result",
    "ForewordError": "foreword.errors",
    "Grammar": "foreword.sampling.grammar",
    "HistogramSnapshot": "foreword.engine.snapshot",
    "KernelError": "foreword.errors",
    "LLM": "foreword.engine.llm",
    "LoadError": "foreword.errors",
    "LoadedModel": "foreword.target.load_model",
    "LogitsProcessor": "foreword.sampling.user_processors",
    "Message": "foreword.engine.prompts",
    "ModelNotFoundError": "foreword.errors",
    "Piece": "foreword.engine.result",
    "Prompt": "foreword.engine.prompts",
    "PromptTooLongError": "foreword.errors",
    "QueueFullError": "foreword.errors",
    "RequestId": "foreword.engine.result",
    "RequestStats": "foreword.engine.stats",
    "Result": "foreword.engine.result",
    "SamplingParams": "foreword.sampling.params",
    "StatefulProcessor": "foreword.sampling.user_processors",
    "TokenLogprob": "foreword.engine.result",
    "Tokenizer": "foreword.checkpoint.tokenizer",
    "UnknownNameError": "foreword.errors",
    "UnsupportedModelError": "foreword.errors",
    "Verifier": "foreword.verify.base",
    "load_model": "foreword.target.load_model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foreword' has no attribute {name!r}; it has: {', '.join(sorted(_HOMES))}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
