"""Which drafter goes to which engine: a writer, or the reason why not."""

from collections.abc import Callable

from foreword.errors import ConfigError, UnknownNameError
from foreword.export import draft_model, eagle, eagle3, gguf_draft, medusa
from foreword.export.layout import ENGINES, Layout
from foreword.export.source import DrafterSource

Writer = Callable[[DrafterSource, str], Layout]

WRITERS: dict[tuple[str, str], Writer] = {
    ("eagle3", "vllm"): eagle3.hf_layout,
    ("eagle3", "sglang"): eagle3.hf_layout,
    ("eagle3", "speculators"): eagle3.speculators_layout,
    ("eagle", "vllm"): eagle.vllm_layout,
    ("eagle", "sglang"): eagle.sglang_layout,
    ("medusa", "vllm"): medusa.vllm_layout,
    ("draft_model", "vllm"): draft_model.hf_layout,
    ("draft_model", "sglang"): draft_model.hf_layout,
    ("draft_model", "llama.cpp"): gguf_draft.llamacpp_layout,
}
_REASONS = {
    ("eagle3", "llama.cpp"): "its converter takes the vLLM folder: export --to vllm, then convert_hf_to_gguf.py DIR --target-model-dir TARGET",
    ("eagle", "llama.cpp"): "llama.cpp runs no EAGLE-1; a draft model works there",
    ("eagle", "speculators"): "speculators writes EAGLE-3 and block drafters; export --to vllm",
    ("medusa", "sglang"): "SGLang runs no Medusa; EAGLE and draft models work there",
    ("medusa", "llama.cpp"): "llama.cpp runs no Medusa; a draft model works there",
    ("medusa", "speculators"): "speculators has no Medusa; export --to vllm (up to 0.32)",
    ("draft_model", "speculators"): "a draft model needs no such wrapper; export --to vllm",
}  # fmt: skip


def layout_for(source: DrafterSource, engine: str) -> Layout:
    """What is written for an engine.

    Raises:
        UnknownNameError: no such engine.
        ConfigError: the engine does not run such a drafter, or its layout cannot hold this one.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    writer = WRITERS.get((source.kind, engine))
    if writer is None:
        raise ConfigError(
            f"{source.path} is {source.kind}, which {engine} does not take: {_REASONS[source.kind, engine]}"
        )
    return writer(source, engine)
