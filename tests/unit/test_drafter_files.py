"""Files of drafters: damage is one line, shards are read, and a thing that is taken for another is told what it is."""

import json
import random

import pytest
from safetensors.torch import load_file, save_file

from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.drafter_folder import tensors_of
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.model.draft_vocab import read_draft_vocab
from foreword.engine.llm import LLM
from foreword.errors import CheckpointError, ConfigError, ForewordError, LoadError, UnsupportedModelError
from foreword.sampling.params import SamplingParams
from tests.support.tiny_llm import write_tiny_llm

KINDS = {"eagle2": "eagle", "eagle3": "eagle3", "medusa": "medusa", "ngram_lm": "ngram_lm"}  # drafter -> folder
PARAMS = SamplingParams(max_tokens=6)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llm(tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="module")
def target(tiny):
    return tiny.load()


def garbage():
    rng = random.Random(3)
    yield b""
    yield b"PK\x03\x04" + rng.randbytes(200)
    yield from (bytes([0x80, version]) + rng.randbytes(300) for version in range(6))
    yield from (rng.randbytes(300) for _ in range(40))
    yield b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01ccollections\nnope\nq\x02s."
    yield b"\x80\x02cbuiltins\nprint\n(X\x01\x00\x00\x00ateR."


@pytest.mark.parametrize("suffix", [".pt", ".bin"])
def test_garbage_in_a_pickle_is_one_line(tmp_path, suffix):
    for content in garbage():
        (tmp_path / f"medusa{suffix}").write_bytes(content)
        with pytest.raises(
            CheckpointError, match=f"medusa{suffix} (does not hold plain tensors|holds something)"
        ) as caught:
            tensors_of(tmp_path / f"medusa{suffix}")
        assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match="draft_vocab is"):
            read_draft_vocab(tmp_path / f"medusa{suffix}", 40)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3_reduced"])
def test_an_eagle_head_in_shards_drafts_the_same(tiny, target, tmp_path, name):
    whole = getattr(tiny, name)
    tensors = load_file(whole / "model.safetensors")
    weight_map = {}
    for index, key in enumerate(tensors):
        weight_map[key] = f"model-0000{index % 2 + 1}-of-00002.safetensors"
    for file in set(weight_map.values()):
        save_file({key: tensor for key, tensor in tensors.items() if weight_map[key] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    method = "eagle2" if name == "eagle" else "eagle3"
    results = [LLM(target, f"{method}={path}").generate("ab", PARAMS)[0] for path in (whole, tmp_path)]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].stats.drafted_tokens == results[1].stats.drafted_tokens > 0
    before = EagleFiles(tmp_path).fingerprint
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    assert EagleFiles(tmp_path).fingerprint != before
    shard.unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of 2 weight files"):
        EagleFiles(tmp_path)


def follow(target, option):
    """The option that the messages lead to, from one that is wrong: a drafter that works in the end."""
    seen = []
    while option not in seen:
        seen.append(option)
        try:
            LLM(target, option).generate("ab", PARAMS)
            return option, seen
        except ForewordError as error:
            text = str(error)
        method, _, path = option.partition("=")
        named = [
            f"{kind}={path}"
            for kind in ("draft_model", "eagle2", "eagle3", "medusa", "ngram_lm")
            if f"{kind}={path}" in text
        ]
        assert len(named) == 1, text
        option = named[0]
    raise AssertionError(f"in a circle: {seen}")


@pytest.mark.parametrize("kind", ["eagle", "eagle2", "eagle3", "medusa", "draft_model"])
@pytest.mark.parametrize("what", ["draft", "eagle", "eagle3", "medusa", "ngram_lm"])
def test_a_drafter_taken_for_another_leads_to_the_right_one(tiny, target, kind, what):
    path = getattr(tiny, what)
    right = {"draft": "draft_model", "eagle": "eagle2"}.get(what, what)
    found, seen = follow(target, f"{kind}={path}")
    assert found == f"{right}={path}" or (what, kind) == ("eagle", "eagle")
    assert len(seen) <= 2


@pytest.mark.parametrize("what", ["eagle", "eagle3", "medusa", "ngram_lm"])
def test_a_drafter_taken_for_a_model_is_told_its_use(tiny, tmp_path, what):
    path = getattr(tiny, what)
    kind = "eagle2" if what == "eagle" else what
    with pytest.raises(UnsupportedModelError, match=f"holds a drafter, .*--drafter {kind}={path}"):
        open_checkpoint(path, cache_dir=tmp_path)


NONSENSE = [None, "abc", 10**400, -1, 0, 1.5, float("nan"), [], {}, True, [[1]]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_drafters_config_is_read_by_its_type(tiny, target, tmp_path, kind):
    import shutil

    folder = shutil.copytree(getattr(tiny, KINDS[kind]), tmp_path / "drafter")
    config = json.loads((folder / "config.json").read_text())
    extra = {"foreword", "norm_output", "norm_before_residual", "norm_before_fc", "fc_norm", "eagle_config"}
    extra |= {"transformer_layer_config", "eagle_aux_hidden_state_layer_ids"} if kind.startswith("eagle") else set()
    words = LLM(target, "none").generate("ab", PARAMS)[0].token_ids
    pairs = [(key, value) for key in sorted({*config, *extra}) for value in NONSENSE]
    for key, value in random.Random(1).sample(pairs, 24):
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        error = None
        try:
            tokens = LLM(target, f"{kind}={folder}").generate("ab", PARAMS)[0].token_ids
        except LoadError as refusal:
            error, tokens = refusal, words
        assert tokens == words
        assert "\n" not in str(error)
