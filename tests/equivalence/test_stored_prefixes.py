"""Cold, from memory and from the disk: the same tokens, with every drafter, on the real runtimes.

On the native runtime log-probabilities too are the same, bit for bit. The oracle is the model without reuse.
"""

from dataclasses import replace

import numpy as np
import pytest

from foreword.bench.fidelity import explain_difference
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.runtime.base import ROW_GROUP, Need
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.combos import ROWS
from tests.support.fuzz import TOLERANCE
from tests.support.model_shapes import tiny_shape
from tests.support.tiny_llm import VOCAB_SIZE, write_tiny_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
CONTEXT_LEN = 320
STEM = [(i * i * 3 + i // 7 + 5) % VOCAB_SIZE for i in range(150)]  # two blocks and some
PROMPTS = [[*STEM, 3], [*STEM[:140], 8, 9], STEM[:30], [*STEM[:64], 5]]
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True, logprobs=1)
PARAMS = [GREEDY, replace(GREEDY, temperature=0.9, seed=3, n=2), GREEDY, replace(GREEDY, temperature=1.0, seed=7)]
KINDS = {"torch": ("torch", None), "native-float32": ("native", "float32"), "native-bfloat16": ("native", "bfloat16")}
FEW = ("none", "suffix", "eagle3", "layerskip")  # with float32 too
DRAFTERS = {row.key: row for row in ROWS if not row.kind}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    shape = tiny_shape()
    longer = replace(shape, spec=replace(shape.spec, context_len=CONTEXT_LEN), draft_context_len=CONTEXT_LEN)
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"), longer)


@pytest.fixture(scope="module", params=KINDS)
def model(request, files):
    runtime, kv_dtype = KINDS[request.param]
    if runtime == "native" and native_problem():
        pytest.skip("the native kernels are not built")
    return replace(files, shape=replace(files.shape, kv_dtype=kv_dtype)).load(runtime)


@pytest.fixture(scope="module")
def cold(model):
    return LLM(model, "none", batch_size=1, prefix_cache=False).generate(PROMPTS, PARAMS)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A folder with the prefixes, written by a process that is gone."""
    folder = tmp_path_factory.mktemp("prompts")
    with LLM(model, "none", prompt_cache=folder) as llm:
        llm.generate([PROMPTS[0]], GREEDY)
    assert len(list(folder.glob("*.rows"))) == 2
    return folder


@pytest.mark.parametrize("key", DRAFTERS)
def test_tokens_are_those_of_a_cold_start(key, model, cold, saved, files):
    row = DRAFTERS[key]
    if model.choice.kv_dtype == "float32" and model.choice.name == "native" and row.drafter not in FEW:
        pytest.skip("bfloat16 runs them all")
    config = {name: _path(value, files) for name, value in row.config.items()}
    with LLM(model, {"method": row.drafter, **config}, batch_size=5, prompt_cache=saved) as llm:
        from_disk = llm.generate(PROMPTS, PARAMS)
        assert llm.snapshot().stored_tokens >= 128
        from_memory = llm.generate(PROMPTS, PARAMS)
    for results in (from_disk, from_memory):
        for ours, expected in zip(results, cold, strict=True):
            compare(model, ours, expected)
    found = [result.stats.cached_tokens for result in from_disk]
    assert found[0] >= 128
    assert min(found[:3]) >= 128
    assert found[4] == 64


def _path(value, files):
    return value.format_map(vars(files)) if isinstance(value, str) else value


def compare(model, ours, expected):
    if ours.token_ids == expected.token_ids:
        if model.choice.name == "native":
            assert ours.logprobs == expected.logprobs
        return
    assert model.choice.name == "torch", (ours.token_ids, expected.token_ids)
    params = replace(
        GREEDY, seed=expected.seed, temperature=PARAMS[PROMPTS.index(expected.prompt_token_ids)].temperature
    )
    sampler = Request(
        expected.prompt_token_ids, params, context_len=CONTEXT_LEN, sample_index=expected.sample_index
    ).sampler
    found = explain_difference(
        model.decoder, expected.prompt_token_ids, expected.token_ids, ours.token_ids, sampler, TOLERANCE
    )
    assert found is not None
    assert found.is_near_tie


def filled(model, num_tokens):
    cache = model.decoder.new_cache()
    slot = cache.open(num_tokens)
    model.decoder.forward(pack([DraftTree.chain(STEM[:num_tokens])], [0], [slot]), cache, Need())
    cache.commit(slot, range(num_tokens))
    return cache, slot


def test_rows_come_back_bit_for_bit(model):
    cache, slot = filled(model, 100)
    for first, count in ((0, 96), (16, 48), (80, 16), (0, 0)):
        rows = cache.save_rows(slot, first, count)
        assert rows.dtype == np.uint8
        assert len(rows) == cache.region_bytes(64) // 64 * count
        assert first % ROW_GROUP == 0
    other = model.decoder.new_cache()
    loaded = other.open(160)
    for first in range(0, 96, 32):
        rows = cache.save_rows(slot, first, 32)
        rows.flags.writeable = False  # as what was read from a file
        other.load_rows(loaded, rows)
    assert other.length(loaded) == 96
    for mine, theirs in zip(other.rows(loaded), cache.rows(slot), strict=True):
        assert mine.numpy().tobytes() == theirs[:, :, :96].contiguous().numpy().tobytes()


def test_saved_rows_hold_nothing_but_rows(model):
    """Two that hold the same, one of them with another past: no byte of what was there before."""
    saved = []
    for past in ([], STEM[50:]):
        cache = model.decoder.new_cache()
        slot = cache.open(128)
        for tokens in (past, STEM[:64]):
            cache.truncate(slot, 0)
            if tokens:
                model.decoder.forward(pack([DraftTree.chain(tokens)], [0], [slot]), cache, Need())
                cache.commit(slot, range(len(tokens)))
        saved.append(cache.save_rows(slot, 0, 64).tobytes())
    if model.choice.name == "native":
        assert saved[0] == saved[1]
    assert len(saved[0]) == len(saved[1])


def test_another_format_of_keys_and_values_finds_nothing(files, tmp_path):
    if native_problem():
        pytest.skip("the native kernels are not built")
    for kv_dtype in ("float32", "bfloat16"):
        model = replace(files, shape=replace(files.shape, kv_dtype=kv_dtype)).load("native")
        with LLM(model, "none", prompt_cache=tmp_path) as llm:
            (result,) = llm.generate([PROMPTS[0]], GREEDY)
        assert result.stats.cached_tokens == 0
    with LLM(files.load(), "none", prompt_cache=tmp_path) as llm:
        (result,) = llm.generate([PROMPTS[0]], GREEDY)
    assert result.stats.cached_tokens == 0
    assert len(list(tmp_path.glob("*.rows"))) == 6
