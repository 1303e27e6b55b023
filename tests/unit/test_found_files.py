"""Files that people have: tokenizers, chats and stop strings as transformers reads them, or an error that says why not."""

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import models, processors

from foreword.checkpoint.folder_tokenizer import tokenizer_from_folder
from foreword.checkpoint.gguf_header import StringList, read_gguf_header
from foreword.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.cli.main import main
from foreword.engine.llm import LLM
from foreword.errors import CheckpointError, ConfigError, ModelNotFoundError
from foreword.sampling.params import SamplingParams
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_files import (
    CHATML,
    add_byte_level_tokenizer,
    add_sentencepiece_tokenizer,
    write_tokenizer_gguf,
)
from tests.support.tiny_llm import END, write_tiny_llm

# Begin and end tokens around a text

ABSENT = "absent"
FRAMES = {"none": ("$A",), "begin": ("<s>", "$A"), "both": ("<s>", "$A", "</s>")}


def framed_backend(frame):
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "a", "b", "c"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    if frame == "bytes":
        backend.post_processor = processors.ByteLevel()
    elif frame != "nothing":
        single = FRAMES[frame]
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(single), special_tokens=[(token, vocab[token]) for token in single if token != "$A"]
        )
    return backend


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2Tokenizer", None])
@pytest.mark.parametrize("frame", ["nothing", "bytes", *FRAMES])
def test_begin_and_end_tokens_are_those_of_transformers(tmp_path, frame, kind):
    from transformers import AutoTokenizer

    framed_backend(frame).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for bos, eos, named in itertools.product([ABSENT, None, True, False], [ABSENT, None, True, False], [True, False]):
        flags = {"add_bos_token": bos, "add_eos_token": eos}
        config = {name: value for name, value in flags.items() if value != ABSENT} | (roles if named else {})
        config |= {} if kind is None else {"tokenizer_class": kind}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = AutoTokenizer.from_pretrained(tmp_path)("abc").input_ids
        assert tokenizer_from_folder(tmp_path, "m").encode("abc") == theirs, config


# Tokenizers in GGUF files


def metadata_of(tmp_path, add, **changes):
    header = read_gguf_header(write_tokenizer_gguf(tmp_path / "t.gguf", add))
    return {**header.metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


@pytest.mark.parametrize(
    ("add", "key", "value"),
    [
        (add_sentencepiece_tokenizer, "unknown_token_id", 10_000),
        (add_sentencepiece_tokenizer, "unknown_token_id", -1),
        (add_sentencepiece_tokenizer, "unknown_token_id", "<unk>"),
        (add_sentencepiece_tokenizer, "bos_token_id", 10_000),
        (add_sentencepiece_tokenizer, "token_type", None),
        (add_sentencepiece_tokenizer, "token_type", "x"),
        (add_sentencepiece_tokenizer, "scores", None),
        (add_sentencepiece_tokenizer, "add_space_prefix", "false"),
        (add_sentencepiece_tokenizer, "add_bos_token", "false"),
        (add_byte_level_tokenizer, "token_type", None),
        (add_byte_level_tokenizer, "merges", None),
        (add_byte_level_tokenizer, "merges", (1, 2)),
        (add_byte_level_tokenizer, "tokens", 5),
        (add_byte_level_tokenizer, "pre", 5),
        (add_byte_level_tokenizer, "eos_token_id", "x"),
    ],
)
def test_a_part_of_a_gguf_tokenizer_that_is_missing_or_senseless_is_named(tmp_path, add, key, value):
    with pytest.raises(CheckpointError, match=rf"tokenizer\.ggml\.{key} in the file's metadata is .*; allowed: "):
        tokenizer_from_gguf(metadata_of(tmp_path, add, **{key: value}), "m")


def test_a_whole_one_is_still_read(tmp_path):
    for add in (add_sentencepiece_tokenizer, add_byte_level_tokenizer):
        metadata = metadata_of(tmp_path, add)
        assert isinstance(metadata["tokenizer.ggml.tokens"], StringList)
        tokenizer = tokenizer_from_gguf(metadata, "m")
        assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_a_token_twice_is_refused(tmp_path):
    def twice(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "a"])
        writer.add_token_types([1, 1])
        writer.add_token_merges([])

    with pytest.raises(CheckpointError, match="the same token several times"):
        tokenizer_from_gguf(read_gguf_header(write_tokenizer_gguf(tmp_path / "t.gguf", twice)).metadata, "m")


# Chat templates


def with_template(template):
    return Tokenizer(framed_backend("nothing"), {}, template, "m")


CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
TOOLS = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"
    "{% if m.content is defined %}D{% endif %}{{ m.content }}{% endif %};{% endfor %}"
)


@pytest.mark.parametrize("template", [CHATML, TOOLS])
@pytest.mark.parametrize("content", [ABSENT, None, "", "text"])
def test_tool_calls_without_content_are_read_as_transformers_does(template, content):
    from tests.support.hf_models import fast_tokenizer

    message = CALL if content == ABSENT else {**CALL, "content": content}
    chat = [{"role": "user", "content": "x"}, message, {"role": "user", "content": None}]
    text = with_template(template).render_chat(chat, add_generation_prompt=False)
    assert text == fast_tokenizer(chat_template=template).apply_chat_template(chat, tokenize=False)
    assert "None" not in text


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        ("{{ 1 // 0 }}", ConfigError, "refuses these messages .*ZeroDivisionError"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", ConfigError, "RecursionError"),
        ("{{ messages[5].role }}", ConfigError, "refuses these messages"),
        ("{{ [].pop() }}", ConfigError, "refuses these messages"),
        ("{{ '%d' % 'x' }}", ConfigError, "refuses these messages"),
        (
            "{% for i in range(10**6) %}{% for j in range(10**6) %}{% endfor %}{% endfor %}",
            CheckpointError,
            "does not end",
        ),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            CheckpointError,
            "does not end",
        ),
        ("{{ 'x' * 10**12 }}", CheckpointError, "does not end: it writes more than"),
        (
            "{% for i in range(1000) %}{{ 'x' * 10**6 }}{% endfor %}",
            CheckpointError,
            "does not end: it writes more than",
        ),
        ("{{ 9 ** (9 ** 9) }}", CheckpointError, "does not end: it computes"),
        ("{% if %}", CheckpointError, "damaged chat template"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", CheckpointError, "damaged chat template"),
        ("{% for a in [1] %}" * 60 + "{% endfor %}" * 60, (CheckpointError, ConfigError), "chat template"),
    ],
    ids=range(13),
)
def test_a_template_is_a_program_that_may_fail(template, error, words):
    with pytest.raises(error, match=words) as caught:
        with_template(template).render_chat([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_a_template_may_count_and_multiply():
    template = "{% for i in range(3) %}{{ i * 2 }}{{ '-' * i }}{{ 2 ** i }}{% endfor %}"
    assert with_template(template).render_chat([{"role": "user", "content": "x"}]) == "012-24--4"


# Stop strings


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llm(tmp_path_factory.mktemp("found"))


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_special_token_as_a_stop_string_stops(tiny, drafter):
    llm = LLM(tiny.load(), drafter)
    end = llm.tokenizer.token_id(END)
    options = {"max_tokens": 40, "ignore_eos": True, "logit_bias": {end: 4.0}, "temperature": 1.0, "seed": 5}
    [whole] = llm.generate("ab", SamplingParams(**options))
    first = whole.token_ids.index(end)
    assert first < 39
    [result] = llm.generate("ab", SamplingParams(**options, stop=["never", END]))
    assert (result.finish_reason, result.token_ids) == ("stop", whole.token_ids[: first + 1])
    assert "".join(piece.text for piece in llm.stream("ab", SamplingParams(**options, stop=[END]))) == result.text


# The command line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["alpha", "c", "verify-cost", "bits", "parameters", "tflops", "bandwidth"])
def test_estimate_takes_numbers_only(option, value, capsys):
    device = (
        [f"--{name}=1" for name in ("tflops", "bandwidth") if name != option]
        if "w" in option or option[0] == "t"
        else []
    )
    assert main(["estimate", f"--{option}={value}", *device]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def run(arguments, redirect, **environment):
    command = f'exec "{sys.executable}" -m foreword {arguments} {redirect}'
    return subprocess.run(
        ["sh", "-c", command], env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True
    )  # fmt: skip


def test_closed_streams_are_one_line_or_nothing():
    closed = run("estimate --json", ">&-")
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "stdout is closed" in closed.stderr
    fine = run("estimate --json", "2>&- <&-")
    assert fine.returncode == 0
    assert json.loads(fine.stdout)


# Paths


def test_a_path_that_is_no_utf8_is_opened_or_one_line(tmp_path, tiny, capsys):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff\xfe")
    shutil.copytree(tiny.target, name)
    assert main(["inspect", name]) == 2
    assert "is no UTF-8, and the safetensors library" in (err := capsys.readouterr().err)
    assert err.count("\n") == 1
    file = write_tiny_chat(Path(name) / "gguf")
    assert main(["inspect", str(file)]) == 0
    assert tokenizer_from_folder(Path(name), "m").encode("ab")


# Hub repositories


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["README.md", "model.q4.gguf"],
            r"no config.json .*it holds README.md, model.q4.gguf; .*owner/name/model.q4.gguf",
        ),
        (["config.json", "pytorch_model.bin"], "no weights of a name that foreword reads .*pytorch_model.bin"),
        (["config.json", "weights.npz"], "no weights .*weights.npz"),
        ([], "no config.json"),
    ],
)
def test_a_repository_of_other_files_is_told_with_what_it_holds(tmp_path, monkeypatch, names, words):
    from foreword.checkpoint.hub import fetch_from_hub

    def snapshot(repo, **options):
        if "config.json" in names:
            (tmp_path / "config.json").write_text("{}")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda self, repo: names)
    with pytest.raises(ModelNotFoundError, match=words):
        fetch_from_hub("owner/name", lambda *progress: None)


# Weights are read once for their checksum


@pytest.mark.parametrize("writable", [True, False])
def test_weights_are_hashed_once_a_load_and_a_warning_is_said_once(tiny, tmp_path, monkeypatch, caplog, writable):
    from foreword.checkpoint import cache as checksums
    from foreword.checkpoint import open_checkpoint

    hashed = []
    real = checksums._hash
    monkeypatch.setattr(checksums, "_hash", lambda path, *rest: hashed.append(path) or real(path, *rest))
    place = tmp_path / "cache"
    if not writable:
        place.write_text("no folder can be made here")
    checkpoint = open_checkpoint(tiny.target, cache_dir=place)
    with caplog.at_level(logging.WARNING):
        assert len({checkpoint.fingerprint for _ in range(4)}) == 1
    assert len(hashed) == 1
    assert len(caplog.records) == (not writable)
