"""What `LLM` and `AsyncLLM` share: a model, its engine in a thread of its own, and how prompts become requests."""

import logging
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.draft.draft_config import DraftConfig
from foreword.engine.disk_prefixes import PROMPT_CACHE_BYTES
from foreword.engine.engine import Engine
from foreword.engine.input_processor import InputProcessor, PreparedPrompt
from foreword.engine.input_threads import InputThreads
from foreword.engine.loop import EngineLoop
from foreword.engine.older_names import answers_older_names
from foreword.engine.prompts import Prompt
from foreword.engine.result import RequestId
from foreword.engine.setup import build, resolve
from foreword.engine.snapshot import EngineSnapshot
from foreword.errors import ForewordError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel
from foreword.verify.base import Verifier

logger = logging.getLogger(__name__)


class LLMBase:
    """A model that generates with drafting.

    Args:
        model: a Hugging Face folder, a hub id, a GGUF file, None for the default model, or a model from `load_model`.
        drafter: a drafter's name, NAME=PATH, a mapping as vLLM's `speculative_config`, or a `DraftConfig`. None: the
            profile's, else "auto"; "ngram" with another verifier than "match", where the tokens depend on the drafts.
        num_speculative_tokens: most drafted tokens per step.
        profile: a file that `foreword tune` wrote: its drafter, settings, runtime and threads, where none are given.
        speculative_config: the same as a mapping in `drafter`, under vLLM's name.
        verifier: how drafts are verified, by name or as an object; "match" gives exactly the tokens of plain decoding.
        batch_size: most requests in one batch.
        policy: how the draft length is chosen: "fixed", "history" or "adaptive" (as much as is faster here and now).
            Default: adaptive for drafter "auto", fixed for the others.
        max_queue: most calls that may wait for a place in the batch, above which a call raises `QueueFullError`; None
            for no limit. A call counts once, however many prompts it has.
        prefix_cache: whether a prompt that begins as an earlier or a running one does is read from there on only. The
            tokens are the same; turn it off to measure.
        kv_cache_bytes: most memory for keys and values, above which requests wait. None: three quarters of what is free
            once the model is loaded, of which an eighth of the free memory may hold those of finished requests.
        prompt_cache: a folder in which prefixes of the prefix cache outlive the process: 64 tokens a file, written while
            nothing runs, and found by model and tokens. The tokens of answers are the same. Prompts can be recovered
            from it, so it is made for its owner alone.
        prompt_cache_bytes: most that its files may take, above which those used longest ago are removed.
        runtime, dtype, device, kv_dtype, isa, threads, share_weights, cache_dir, show_progress: see `load_model`.

    Raises:
        ConfigError: an argument is wrong; before anything is loaded.
        LoadError: the model or its drafter cannot be brought in.
    """

    @answers_older_names
    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        drafter: str | DraftConfig | Mapping[str, Any] | None = None,
        *,
        num_speculative_tokens: int | None = None,
        profile: str | Path | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        verifier: str | Verifier = "match",
        batch_size: int = 8,
        policy: str | None = None,
        max_queue: int | None = 1024,
        prefix_cache: bool = True,
        kv_cache_bytes: int | None = None,
        prompt_cache: str | Path | None = None,
        prompt_cache_bytes: int = PROMPT_CACHE_BYTES,
        runtime: str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        kv_dtype: str = "auto",
        isa: str = "auto",
        threads: int | None = None,
        share_weights: bool = False,
        cache_dir: str | Path | None = None,
        show_progress: bool = False,
    ) -> None:
        settings = resolve(
            model,
            drafter,
            num_speculative_tokens=num_speculative_tokens,
            profile=profile,
            speculative_config=speculative_config,
            verifier=verifier,
            batch_size=batch_size,
            policy=policy,
            max_queue=max_queue,
            prefix_cache=prefix_cache,
            kv_cache_bytes=kv_cache_bytes,
            prompt_cache=prompt_cache,
            prompt_cache_bytes=prompt_cache_bytes,
            load_options={
                "runtime": runtime,
                "dtype": dtype,
                "device": device,
                "kv_dtype": kv_dtype,
                "isa": isa,
                "threads": threads,
                "share_weights": share_weights,
                "cache_dir": cache_dir,
                "show_progress": show_progress,
            },
        )
        built = build(settings)
        self.model, self.config = built.model, built.config
        self._warns_of_reference = built.config.method != "none" and not built.drafter.uses_reference
        self._max_queue = max_queue
        self._input = InputProcessor(self.model.checkpoint)
        self._threads = InputThreads()
        self.replace_engine(built.engine)

    @classmethod
    def from_transformers(
        cls, model: Any, tokenizer: Any, drafter: str | DraftConfig | Mapping[str, Any] | None = None, **options: Any
    ) -> Self:
        """A model loaded with transformers, with its tokenizer: any with attention in all its layers.

        The weights are shared, not copied. The options are those of `LLM`, without those of loading.

        Raises:
            UnsupportedModelError: the model cannot read trees of drafts; the message says why.
        """
        from foreword.target.hf_load import adopt_model

        return cls(adopt_model(model, tokenizer), drafter, **options)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.model.tokenizer

    @property
    def engine(self) -> Engine:
        """What runs the passes, in a thread of its own: only to be looked at while nothing runs."""
        return self._loop.engine

    def replace_engine(self, engine: Engine) -> None:
        """Generate with another engine: for tests and benchmarks, before the first request."""
        self._loop = EngineLoop(engine, self._max_queue)
        weakref.finalize(self, self._loop.end).atexit = False

    def abort(self, request_id: RequestId) -> None:
        """End a request between two passes: whoever waits for it gets what there is (`finish_reason` "abort").

        May be called from any thread, and never waits. An id that is not in use is ignored.
        """
        self._loop.abort(request_id)

    @property
    def refusal(self) -> ForewordError | None:
        """Why no more requests are taken: it was closed, or its engine has ended; None while they are."""
        return self._loop.refusal

    def snapshot(self) -> EngineSnapshot:
        """Counters and histograms since the model was loaded: plain data. May be called from any thread."""
        return self._loop.snapshot()

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None,
        request_id: RequestId | Sequence[RequestId] | None = None,
        streams: bool = False,
    ) -> list[PreparedPrompt]:
        """Checked and tokenized; warns once where a reference is not used."""
        prepared = self._input.prepare(prompts, params, drafting, request_id, streams=streams)
        if self._warns_of_reference and any(p.drafting.enabled and p.drafting.reference for p in prepared):
            self._warns_of_reference = False
            logger.warning(
                "drafter %r does not use a reference; ngram, suffix and memory do, alone or in a cascade such as 'ngram,%s'",
                self.config.method,
                self.config.method,
            )
        return prepared
