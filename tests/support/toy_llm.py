"""A whole `LLM` around the toy decoder, with a real byte-level tokenizer."""

from types import SimpleNamespace

import tokenizers
import torch

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.engine.async_llm import AsyncLLM
from foreword.engine.llm import LLM, LoadedModel
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_tokenizers import byte_level_backend

END = "<end>"


def byte_tokenizer(*words: str) -> Tokenizer:
    """The 256 bytes, some ASCII words as tokens of their own (made by merges), and an end token, last."""
    backend = byte_level_backend(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), words, END)
    return Tokenizer(backend, {"eos_token": END}, None, "toy")


def toy_llm(
    decoder: ToyDecoder, tokenizer: Tokenizer, drafter=None, *, batch_size: int = 8, kind=LLM, **options
) -> LLM:
    """An `LLM` that answers with the toy's tokens; `drafter` may be a name or an object."""
    checkpoint = SimpleNamespace(
        spec=decoder.spec,
        tokenizer=tokenizer,
        eos_token_ids=(tokenizer.eos_token_id,),
        fingerprint=f"toy {decoder.seed}",
    )
    choice = SimpleNamespace(name="toy", dtype="float32", kv_dtype="float32")
    model = LoadedModel(checkpoint=checkpoint, choice=choice, runtime=None, decoder=decoder)  # type: ignore[arg-type]
    if drafter is None or isinstance(drafter, str):
        return kind(model, drafter or "none", batch_size=batch_size, **options)
    llm = kind(model, "ngram", batch_size=batch_size, **options)
    from foreword.engine.engine import Engine
    from foreword.engine.fixed_policy import FixedController
    from foreword.engine.kv_budget import KVBudget
    from foreword.engine.step import StepParts
    from foreword.target.target import Target
    from foreword.verify.base import Matching

    parts = StepParts(FixedController(16, drafter.name, 4), drafter, Target(decoder), Matching())
    llm.replace_engine(Engine(parts, batch_size, KVBudget(max_finished=64)))
    return llm


def toy_async_llm(decoder: ToyDecoder, tokenizer: Tokenizer, drafter=None, **options) -> AsyncLLM:
    """The same, for asyncio."""
    return toy_llm(decoder, tokenizer, drafter, kind=AsyncLLM, **options)  # type: ignore[return-value]


class ScriptDecoder(ToyDecoder):
    """Says one text whatever it is asked: the token of each place by far, the others in some order."""

    def __init__(self, token_ids: list[int], vocab_size: int, prompt_len: int = 1, context_len: int = 4096) -> None:
        super().__init__(vocab_size, context_len=context_len)
        self.script, self.prompt_len = tuple(token_ids), prompt_len

    def __hash__(self) -> int:
        return hash((self.script, self.prompt_len, self.spec))

    def logits_after(self, tokens, position: int) -> torch.Tensor:
        place = position - self.prompt_len + 1
        if place not in self._rows:
            row = -torch.arange(self.spec.vocab_size, dtype=torch.float32) / self.spec.vocab_size
            row[self.script[place % len(self.script)]] = 9.0
            self._rows[place] = row
        return self._rows[place]
