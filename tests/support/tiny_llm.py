"""A two-layer model that is a whole model: folders with weights and tokenizers, and what drafts for it.

Its alphabet is small (some letters, what JSON needs, two characters of several bytes), so that texts repeat themselves, stop
strings occur and guesses are sometimes right.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch

from foreword.config import ModelSpec
from foreword.target.load_model import LoadedModel, load_model
from tests.support.eagle_heads import head_config, head_tensors, save_head
from tests.support.medusa_heads import random_heads, save_heads, vllm_config
from tests.support.model_shapes import MIN_VOCAB_SIZE, TinyShape, tiny_shape
from tests.support.ngram_tables import save_table, table_of_texts
from tests.support.tiny_files import write_folder
from tests.support.tiny_models import TinyWeights, rope_parameters
from tests.support.toy_tokenizers import byte_level_backend

LETTERS = 'abcdefgh {}":,01'
ALPHABET = LETTERS + "é世"
END = "<end>"
WORDS = ("ab", "abc", " a", "bad", "cd", '{"', '":', " b", "he", "face", "gg")
OTHER_WORDS = ("ba", "ca", "cab", " ab", "de", "da", '"a', "hh", ", ", "ace")
CONTEXT_LEN = 128  # of the plain shape
VOCAB_SIZE, DRAFT_VOCAB_SIZE = MIN_VOCAB_SIZE, 37  # both padded beyond the tokenizer


@dataclass(frozen=True)
class TinyFiles:
    """Paths of the target and of its drafters."""

    target: Path
    draft: Path  # same tokenizer, nearly the target's mind, half its context
    other: Path  # another tokenizer
    eagle: Path
    eagle3: Path
    eagle3_reduced: Path
    medusa: Path
    medusa_reduced: Path  # two layers per head, half the vocabulary
    ngram_lm: Path
    shape: TinyShape

    def load(self, runtime: str = "torch", threads: int = 1) -> LoadedModel:
        """The target: float32 on torch, int8 on native unless its shape says otherwise."""
        is_torch = runtime == "torch"
        return load_model(
            self.target,
            runtime=runtime,
            dtype="float32" if is_torch else self.shape.native_dtype,
            kv_dtype="auto" if is_torch else self.shape.kv_dtype or "auto",
            device="cpu",
            threads=threads,
            cache_dir=self.target.parent / "cache",
        )


def tiny_backend(words: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-level: the bytes of `ALPHABET`, words made of them by merges, and an end token."""
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    (pieces,) = [text for text, _ in level.pre_tokenize_str(ALPHABET)]
    return byte_level_backend(dict.fromkeys(pieces), words, END)


def write_tiny_llm(folder: Path, shape: TinyShape | None = None) -> TinyFiles:
    """Everything, under `folder`; the plain shape unless another is given."""
    shape = shape or tiny_shape()
    mine, other = tiny_backend(WORDS), tiny_backend(OTHER_WORDS)
    end = mine.token_to_id(END)
    assert end < DRAFT_VOCAB_SIZE < VOCAB_SIZE, "the alphabet has grown: give the models more rows"
    spec = shape.spec
    weights = TinyWeights(spec, seed=4 + shape.number, logit_scale=2.5)
    draft_spec = replace(spec, vocab_size=DRAFT_VOCAB_SIZE, context_len=shape.draft_context_len)
    other_spec = replace(spec, num_layers=1, vocab_size=other.get_vocab_size())
    half = torch.arange(0, spec.vocab_size, 2)
    return TinyFiles(
        target=_model(folder / "target", weights, mine, shape),
        draft=_model(folder / "draft", _like(weights, draft_spec), mine),
        other=_model(folder / "other", TinyWeights(other_spec, seed=6, logit_scale=2.5), other),
        eagle=_head(folder / "eagle", spec, False),
        eagle3=_head(folder / "eagle3", spec, True),
        eagle3_reduced=_head(folder / "eagle3-reduced", spec, True, half),
        medusa=_medusa(folder / "medusa", spec),
        medusa_reduced=_medusa(folder / "medusa-reduced", spec, half),
        ngram_lm=save_table(folder / "ngram-lm", table_of_texts(_walks(), spec.vocab_size)),
        shape=shape,
    )


def _like(weights: TinyWeights, spec: ModelSpec, blur: float = 0.1) -> TinyWeights:
    """Weights near others, with fewer rows of the vocabulary."""
    made = TinyWeights(spec, seed=5)
    for name, noise in made.tensors.items():
        theirs = weights.tensors[name][: noise.shape[0]]
        made.tensors[name] = theirs if noise.ndim == 1 else theirs + blur * noise
    return made


def _walks(num: int = 12, length: int = 60) -> list[list[int]]:
    """Texts in which a token is mostly followed by one of two."""
    rng = random.Random(8)
    after = [rng.sample(range(VOCAB_SIZE), 2) for _ in range(VOCAB_SIZE)]
    texts = [[rng.randrange(VOCAB_SIZE)] for _ in range(num)]
    for text in texts:
        while len(text) < length:
            text.append(rng.choice(after[text[-1]]))
    return texts


def _model(folder: Path, weights: TinyWeights, backend: tokenizers.Tokenizer, shape: TinyShape | None = None) -> Path:
    files: dict[str, Any] = {} if shape is None else {"num_shards": shape.num_shards, "dtype": shape.dtype}
    if weights.spec.rope.linear_factor != 1.0 or weights.spec.rope.llama3 is not None:
        files["rope_scaling"] = {k: v for k, v in rope_parameters(weights.spec).items() if k != "rope_theta"}
    write_folder(folder, weights, eos_token_id=backend.token_to_id(END), **files)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder


def _head(folder: Path, spec: ModelSpec, is_eagle3: bool, draft_ids: torch.Tensor | None = None) -> Path:
    options: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]} if is_eagle3 else {}
    config = head_config(spec, is_eagle3, **options) | {"max_position_embeddings": 96}
    return save_head(folder, config, head_tensors(spec, is_eagle3, seed=3, draft_ids=draft_ids))


def _medusa(folder: Path, spec: ModelSpec, token_map: torch.Tensor | None = None) -> Path:
    rows = None if token_map is None else len(token_map)
    heads = random_heads(spec, seed=9, num_layers=1 if token_map is None else 2, rows=rows)
    tensors = heads if token_map is None else {**heads, "token_map": token_map}
    return save_heads(folder, vllm_config(spec, heads), tensors)
