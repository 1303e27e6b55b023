"""The default model, for real: fetched or found in the cache, opened at once, with the tokens of its publisher."""

import json
import subprocess
import sys

import pytest
import torch

from foreword.checkpoint import open_checkpoint
from foreword.errors import DownloadError
from tests.support.tiny_files import byte_chars

DIALOGUE = [{"role": "user", "content": "What is gravity?"}]


@pytest.fixture(scope="module")
def checkpoint():
    try:
        return open_checkpoint(None)
    except DownloadError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


def test_it_is_the_published_file(checkpoint):
    assert checkpoint.fingerprint == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    spec = checkpoint.spec
    assert (spec.family, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("llama", 30, 576, 49152)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.context_len) == (9, 3, 64, 8192)
    assert spec.rope.theta == 100_000
    assert spec.tied_head
    assert spec.num_parameters == 134_515_008
    assert checkpoint.dtype_name == "Q4_1"
    assert checkpoint.eos_token_ids == (2, 0)


def test_opening_the_cached_model_is_cheap(checkpoint):
    """Imports of the interpreter aside; 0.3 s is five times what it takes on an idle machine."""
    program = (
        "import sys, time; from foreword.checkpoint import open_checkpoint; begin = time.perf_counter(); "
        "open_checkpoint(sys.argv[1]); print(time.perf_counter() - begin, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "default"]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    assert min(float(seconds) for seconds, _ in outputs) < 0.3
    assert {imported for _, imported in outputs} == {"False"}


def test_a_chat_becomes_the_prompt_the_model_was_trained_on(checkpoint):
    tokenizer = checkpoint.tokenizer
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.render_chat(DIALOGUE) == text
    ids = tokenizer.apply_chat_template(DIALOGUE)
    assert ids[:3] == [1, 9690, 198]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_its_ids_are_those_of_transformers_for_the_prompts_of_the_comparison(checkpoint, shared_dir):
    lines = (shared_dir / "peers" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 5
    for line in lines:
        prompt = json.loads(line)
        assert checkpoint.tokenizer.encode(prompt["text"]) == prompt["ids"]
        assert checkpoint.tokenizer.decode(prompt["ids"], skip_special_tokens=False) == prompt["text"]


def test_digits_stand_alone_and_do_not_split_spaces(checkpoint):
    """The publisher's tokenizer takes digits out first; byte-level splitting alone would give other ids here."""
    tokenizer = checkpoint.tokenizer
    pieces = [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("x =  2024\n\n7")]
    assert pieces == ["x", "Ġ=", "ĠĠ", "2", "0", "2", "4", "ĊĊ", "7"]


def test_text_streams_whole(checkpoint, shared_dir):
    text = (shared_dir / "data" / "text" / "python_docs.txt").read_text(encoding="utf-8")[:20_000] + "日本語 🦙👩‍👩‍👧 é"
    tokenizer = checkpoint.tokenizer
    ids, stream = tokenizer.encode(text), tokenizer.stream()
    assert "".join([*(stream.push([token]) for token in ids), stream.finish()]) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids).decode() == text
    assert set("".join(tokenizer.backend.id_to_token(token) for token in set(ids))) <= set(byte_chars())


def test_converted_weights_are_those_of_the_file(checkpoint):
    weights = checkpoint.as_dtype("bfloat16")
    for name in ("embed.weight", "layers.0.q.weight", "layers.29.down.weight", "norm.weight"):
        assert torch.equal(weights.tensor(name), checkpoint.tensor(name).bfloat16()), name
