"""The tests of logits can fail: each thing that a family has, left out or moved by one, shows."""

from dataclasses import fields, replace

import numpy as np
import pytest

from foreword.config import LayerSpec, ModelSpec, RopeSpec
from foreword.runtime import torch_attention
from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from tests.models.test_torch_logits import TOKENS, read
from tests.native.models import batch_of, chain
from tests.support.family_models import CONFIGS, WINDOWED, distance, family_model, logits_of

_SHOWS = 1e-3
# What is not computed from, or decides which tensors there are.
_SHAPES = {
    "family", "layers", "rope", "qkv_bias", "o_bias", "mlp_bias", "qk_norm", "qk_norm_over", "norms", "norm_bias", "tied_head",
    "norm_eps", "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size", "vocab_size",
    "context_len",
}  # fmt: skip


def mutants(spec: ModelSpec) -> dict[str, ModelSpec]:
    """Specs that are wrong in one thing."""
    plain = {field.name: field.default for field in fields(ModelSpec) if field.name not in _SHAPES}
    found = {
        name: replace(spec, **{name: value}) for name, value in plain.items() if getattr(spec, name) != value
    }  # fmt: skip
    for step in (-1, 1):
        layers = [
            layer if layer.window is None else replace(layer, window=layer.window + step) for layer in spec.layers
        ]
        found[f"window {step:+}"] = replace(spec, layers=tuple(layers))
    for field in fields(RopeSpec):
        if field.name == "num_rotated" and any(rope.divisors for rope in spec.ropes):
            continue
        wrong = {rope: replace(rope, **{field.name: field.default}) for rope in spec.ropes}
        layers = [replace(layer, rope=layer.rope and wrong[layer.rope]) for layer in spec.layers]
        found[f"rope {field.name}"] = replace(spec, rope=wrong.get(spec.rope, spec.rope), layers=tuple(layers))
    everywhere = tuple(LayerSpec(window=layer.window, rope=spec.rope) for layer in spec.layers)
    found["rope everywhere"] = replace(spec, layers=everywhere)
    return {name: mutant for name, mutant in found.items() if mutant != spec}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_mutant_shows(name, opened):
    checkpoint = opened(name)
    expected = logits_of(family_model(name), TOKENS)
    for what, spec in mutants(checkpoint.spec).items():
        decoder = TorchRuntime("cpu", "float32").decoder(spec, checkpoint)
        assert distance(read(decoder, (40,)), expected) > _SHOWS, what


def read_past_siblings(decoder, text):
    """Logits along a path of eleven nodes of a tree, of which the sixth has five siblings before it, after twenty tokens."""
    tokens = [*text[20:25], *[5] * 5, *text[25:31]]
    parents = [-1, 0, 1, 2, 3, *[4] * 5, 4, 10, 11, 12, 13, 14]
    cache = decoder.new_cache()
    slot = cache.open(64)
    decoder.forward(chain(text[:20], 0, slot), cache, Need())
    cache.commit(slot, range(20))
    batch = batch_of([(tokens, parents)], [20], [slot])
    return decoder.forward(batch, cache, Need(logits=[0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15])).logits


def plant_windows_of_rows(monkeypatch):
    """Siblings share a position: a window of torch's that is counted in rows cuts ancestors off."""
    right = torch_attention._view

    def by_rows(batch, request, *rest):
        rows = np.arange(batch.num_nodes, dtype=np.int32) + batch.kv_lens[request]
        return right(replace(batch, positions=rows), request, *rest)

    monkeypatch.setattr(torch_attention, "_view", by_rows)


@pytest.mark.parametrize("name", ["gemma2", "mistral"])
def test_a_window_of_rows_shows(name, opened, monkeypatch):
    assert name in WINDOWED
    checkpoint, expected = opened(name), logits_of(family_model(name), TOKENS)[20:31]
    decoder = TorchRuntime("cpu", "float32").decoder(checkpoint.spec, checkpoint)
    assert distance(read_past_siblings(decoder, TOKENS), expected) < 1e-5
    plant_windows_of_rows(monkeypatch)
    assert distance(read_past_siblings(decoder, TOKENS), expected) > _SHOWS
