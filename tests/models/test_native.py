"""On the native runtime every family's logits equal those of torch whose maps round as the kernels do, and each thing left out shows."""

import numpy as np
import pytest
import torch

from foreword.engine.llm import load_model
from foreword.runtime.select import native_problem
from tests.models.test_mutants import mutants, plant_windows_of_rows, read_past_siblings
from tests.support.family_models import CONFIGS, VOCAB_SIZE, distance, family_model, logits_of
from tests.support.rounded_torch import nearest, read_texts, rounded_decoder

pytestmark = pytest.mark.skipif(native_problem() is not None, reason=str(native_problem()))
TEXTS = np.random.default_rng(3).integers(3, VOCAB_SIZE, (8, 40)).tolist()
MOST, SHOWS = 1e-4, 1e-3
INT8 = 0.15  # of the spread of a row: random weights of these sizes, rounded


@pytest.fixture(scope="module")
def runtime(folders):
    from foreword.runtime.native_runtime import NativeRuntime

    return NativeRuntime(threads=1, cache_dir=folders / "packed", kv_dtype="float32")


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name, opened, runtime):
    checkpoint = opened(name)
    logits = read_texts(runtime.decoder(checkpoint.spec, checkpoint), TEXTS)
    assert nearest(logits, read_texts(rounded_decoder(checkpoint.spec, checkpoint), TEXTS)) < MOST
    assert distance(logits[0], logits_of(family_model(name), TEXTS[0])) < INT8


# Between them they have everything; the others are a sweep.
MUTATED = ("qwen3_yarn", "ministral3", "granite", "smollm3", "olmo3", "stablelm", "cohere2", "gemma2", "gemma3")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in MUTATED else pytest.mark.slow) for name in CONFIGS]
)
def test_each_mutant_shows(name, opened, runtime):
    checkpoint = opened(name)
    expected = read_texts(rounded_decoder(checkpoint.spec, checkpoint), TEXTS[:3])
    for what, spec in mutants(checkpoint.spec).items():
        logits = read_texts(runtime.decoder(spec, checkpoint), TEXTS[:3])
        assert nearest(logits, expected) > SHOWS, what


@pytest.mark.parametrize("name", ["gemma2", "mistral"])
def test_a_sibling_takes_no_place_in_the_window(name, opened, runtime, monkeypatch):
    checkpoint = opened(name)

    def read(decoder):
        return torch.stack([read_past_siblings(decoder, text) for text in TEXTS])

    logits, rounded = read(runtime.decoder(checkpoint.spec, checkpoint)), rounded_decoder(checkpoint.spec, checkpoint)
    assert nearest(logits, read(rounded)) < MOST
    plant_windows_of_rows(monkeypatch)
    assert nearest(logits, read(rounded)) > SHOWS


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_it_is_taken_where_nothing_is_said(name, opened, folders):
    opened(name)
    loaded = load_model(folders / name, cache_dir=folders / "cache")
    assert loaded.choice.name == "native"
    assert loaded.decoder.spec.context_len == 256, "windows cut no context"
