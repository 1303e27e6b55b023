"""Tokenizers from GGUF metadata and folders: the ids of the published tokenizers, texts that stream whole, chats."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from foreword.checkpoint.folder_tokenizer import tokenizer_from_folder
from foreword.checkpoint.gguf_header import read_gguf_header
from foreword.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.errors import CheckpointError, ConfigError, UnsupportedModelError
from tests.support.tiny_files import (
    BYTE_LEVEL_MERGES,
    CHATML,
    add_byte_level_tokenizer,
    add_sentencepiece_tokenizer,
    byte_level_vocabulary,
    write_tokenizer_gguf,
)

TEXTS = [
    "", " ", "hello", "hello  world 1234", "x\n\n12 \n 3", "    12", "Ä ä é 日本語", "🦙👩\u200d👩\u200d👧",
    "don't DON'T", "\x00\x7f", "\u0301e", "a\r\n\tb", "½ ² ٣", "<|im_start|>user\nhello<|im_end|>", "<tool> <tool>x",
]  # fmt: skip
CHAT = [{"role": "user", "content": "hello 12"}]


def gguf_tokenizer(path, add, **options):
    return tokenizer_from_gguf(read_gguf_header(write_tokenizer_gguf(path, add, **options)).metadata, path.name)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return gguf_tokenizer(tmp_path_factory.mktemp("t") / "b.gguf", add_byte_level_tokenizer)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    return gguf_tokenizer(tmp_path_factory.mktemp("t") / "s.gguf", add_sentencepiece_tokenizer)


def published_backend():
    """The same vocabulary as SmolLM2's tokenizer.json puts it together: single digits, then bytes."""
    vocab = {token: index for index, token in enumerate(byte_level_vocabulary())}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [tuple(merge.split()) for merge in BYTE_LEVEL_MERGES]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return backend


@pytest.fixture
def folder(tmp_path):
    published_backend().save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "chat_template": CHATML,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def edit_config(folder, **changes):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_gguf_tokenizer_gives_the_ids_of_the_published_one(byte_level):
    published = published_backend()
    for text in TEXTS:
        assert byte_level.encode(text) == published.encode(text).ids, text
    assert byte_level.vocab_size == len(byte_level_vocabulary())
    assert (byte_level.bos_token_id, byte_level.eos_token_id) == (1, 2)


# How each rule cuts a text, as the authors' tokenizers do it: written down by hand from their regular expressions.
@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", "Ġpay", "Ġ", "Ġ1234", "$,", "Ċ", "Ċ", "DON", "'", "T"]),
        ("smollm", ["I", "'ll", "Ġpay", "ĠĠ", "1", "2", "3", "4", "$,", "Ċ", "Ċ", "DON", "'", "T"]),
        ("qwen2", ["I", "'ll", "Ġpay", "Ġ", "Ġ", "1", "2", "3", "4", "$,ĊĊ", "DON", "'T"]),
        ("llama-bpe", ["I", "'ll", "Ġpay", "Ġ", "Ġ", "123", "4", "$,ĊĊ", "DON", "'T"]),
        ("tekken", ["I", "'ll", "Ġpay", "Ġ", "Ġ", "1", "2", "3", "4", "$,ĊĊ", "DON", "'T"]),
    ],
)
def test_each_rule_cuts_text_its_own_way(tmp_path, pre, pieces):
    tokenizer = gguf_tokenizer(tmp_path / "t.gguf", add_byte_level_tokenizer, pre=pre)
    cut = tokenizer.backend.pre_tokenizer.pre_tokenize_str("I'll pay  1234$,\n\nDON'T")
    assert [piece for piece, _ in cut] == pieces


def test_an_unknown_rule_or_kind_is_named(tmp_path):
    with pytest.raises(UnsupportedModelError, match="rule 'klingon'.*supported: gpt-2, default, smollm"):
        gguf_tokenizer(tmp_path / "t.gguf", add_byte_level_tokenizer, pre="klingon")
    with pytest.raises(UnsupportedModelError, match="kind 'bert'; supported: gpt2, llama"):
        tokenizer_from_gguf({"tokenizer.ggml.model": "bert"}, "x")
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.tokens in the file's metadata is missing"):
        tokenizer_from_gguf({"tokenizer.ggml.model": "gpt2"}, "x")


def test_a_rule_that_is_not_named_is_guessed_and_said(tmp_path, caplog):
    tokenizer = gguf_tokenizer(tmp_path / "t.gguf", add_byte_level_tokenizer, pre=None)
    assert "taking 'default'" in caplog.text
    assert tokenizer.decode(tokenizer.encode("hello 12")) == "hello 12"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", ["▁hello"]),
        ("hello hello", ["▁hello", "▁hello"]),
        ("  hello", ["▁", "▁", "▁hello"]),
        ("hello</s>hello", ["▁hello", "</s>", "▁hello"]),
        ("hell é日", ["▁", "hell", "▁", "é", "<0xE6>", "<0x97>", "<0xA5>"]),
        ("wello", ["▁w", "e", "ll", "o"]),
        ("abc", ["▁", "a", "bc"]),
    ],
)
def test_sentencepiece_merges_the_best_pair_first_and_falls_back_to_bytes(sentencepiece, text, tokens):
    ids = sentencepiece.encode(text, add_special_tokens=False)
    assert [sentencepiece.backend.id_to_token(i) for i in ids] == tokens
    assert sentencepiece.encode(text) == [1, *ids]  # the begin token
    assert sentencepiece.decode(ids, skip_special_tokens=False).replace("</s> ", "</s>") == text


def test_the_first_space_is_added_only_where_the_file_asks_for_it(tmp_path):
    tokenizer = gguf_tokenizer(tmp_path / "t.gguf", add_sentencepiece_tokenizer, add_space_prefix=False)
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert [tokenizer.backend.id_to_token(i) for i in ids] == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


@given(st.text())
def test_text_survives_encoding(byte_level, text):
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@st.composite
def cut_ids(draw, vocab_size):
    """Any ids at all, in portions of any size."""
    return draw(st.lists(st.lists(st.integers(0, vocab_size - 1), max_size=4), max_size=30))


def test_an_id_without_a_meaning_does_not_end_a_run_of_bytes(sentencepiece):
    """Found by the property below: bytes 0x00 and 0x80 with an unknown id between are judged together."""
    unknown = sentencepiece.vocab_size
    for skip in (True, False):
        stream = sentencepiece.stream(skip)
        pieces = [stream.push([3, unknown]), stream.push([131]), stream.finish()]
        assert "".join(pieces) == sentencepiece.decode([3, unknown, 131], skip)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
def test_pieces_of_a_stream_join_to_the_decoded_whole(byte_level, sentencepiece, kind, skip, data):
    tokenizer: Tokenizer = {"byte_level": byte_level, "sentencepiece": sentencepiece}[kind]
    portions = data.draw(cut_ids(tokenizer.vocab_size + 2))  # with ids that mean nothing
    stream = tokenizer.stream(skip)
    pieces = [stream.push(portion) for portion in portions]
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode([i for part in portions for i in part], skip)


@given(st.text(alphabet=st.sampled_from("ahelo é日🦙👩‍\u0301 \n"), max_size=30))
def test_a_stream_never_breaks_a_character_and_holds_back_no_more_than_one(byte_level, text):
    stream, ids = byte_level.stream(), byte_level.encode(text)
    sent = ""
    for count, token in enumerate(ids, 1):
        sent += stream.push([token])
        assert "\ufffd" not in sent
        whole = b"".join(byte_level.token_bytes(i) for i in ids[:count]).decode(errors="ignore")
        assert sent == whole
    assert stream.finish() == ""


def test_bytes_that_are_no_text_appear_only_when_nothing_can_complete_them(byte_level):
    first = byte_level.encode("日")[0]
    stream = byte_level.stream()
    assert stream.push([first]) == ""
    assert stream.push([byte_level.encode("h")[0]]) == "\ufffdh"
    assert stream.push([first]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_token_bytes_join_to_the_text(byte_level, sentencepiece):
    for text in TEXTS:
        ids = byte_level.encode(text)
        plain = byte_level.decode(ids)
        assert b"".join(byte_level.token_bytes(i) for i in ids).decode() == plain
    ids = sentencepiece.encode("hello é日")
    assert b"".join(sentencepiece.token_bytes(i) for i in ids).decode() == " hello é日"
    assert byte_level.token_bytes(10**6) == b""


def test_a_folder_gives_the_tokenizer_that_transformers_reads_from_it(folder):
    from transformers import AutoTokenizer

    (folder / "config.json").write_text('{"model_type": "llama"}')
    edit_config(folder, tokenizer_class="PreTrainedTokenizerFast")
    ours, theirs = tokenizer_from_folder(folder, "m"), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    options = {"add_generation_prompt": True, "tokenize": False}
    assert ours.render_chat(CHAT) == theirs.apply_chat_template(CHAT, **options)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


def test_a_frame_in_tokenizer_json_is_kept_and_truncation_is_not(folder):
    backend = published_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    backend.save(str(folder / "tokenizer.json"))
    ids = tokenizer_from_folder(folder, "m").encode("hello hello hello")
    assert ids[0] == 0
    assert len(ids) == 6


def test_tokens_that_only_the_configuration_lists_are_added(folder):
    next_id = len(byte_level_vocabulary())
    edit_config(folder, added_tokens_decoder={str(next_id): {"content": "<think>", "special": False}})
    assert tokenizer_from_folder(folder, "m").encode("<think>") == [next_id]


def test_old_tokenizer_files_are_converted(tmp_path):
    vocab = {token: index for index, token in enumerate(byte_level_vocabulary())}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(BYTE_LEVEL_MERGES) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = tokenizer_from_folder(tmp_path, "m")
    assert tokenizer.encode("hello w") == [vocab["hello"], vocab["Ġw"]]


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_says_so(folder, tmp_path_factory):
    with pytest.raises(CheckpointError, match=r"no tokenizer: tokenizer\.json is missing"):
        tokenizer_from_folder(tmp_path_factory.mktemp("empty"), "m")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        tokenizer_from_folder(folder, "m")


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "list", "config"])
def test_the_chat_template_is_found_wherever_it_lies(folder, place):
    edit_config(folder, chat_template=None)
    if place == "chat_template.jinja":
        edit_config(folder, chat_template="the old one")
        (folder / place).write_text(CHATML)
    elif place == "chat_template.json":
        (folder / place).write_text(json.dumps({"chat_template": CHATML}))
    elif place == "list":
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
        edit_config(folder, chat_template=named)
    else:
        edit_config(folder, chat_template=CHATML)
    tokenizer = tokenizer_from_folder(folder, "m")
    assert tokenizer.has_chat_template
    text = "<|im_start|>user\nhello 12<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render_chat(CHAT) == text
    assert tokenizer.apply_chat_template(CHAT) == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.render_chat(CHAT, add_generation_prompt=False) == text.removesuffix("<|im_start|>assistant\n")


def with_template(template):
    return Tokenizer(published_backend(), {"bos_token": "<|im_start|>"}, template, "m")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<|im_start|>hello 12"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'ä': '<'} | tojson }}", '{"ä": "<"}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("a{% generation %}{{ messages[0].role }}{% endgeneration %}b", "auserb"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ 'yes' if tools is none else 'no' }}{{ enable_thinking }}", "yesFalse"),
        ("{{ undefined_thing }}.", "."),
    ],
)
def test_templates_have_what_those_of_transformers_use(template, text):
    assert with_template(template).render_chat(CHAT, options={"enable_thinking": False}) == text


def test_what_a_template_refuses_is_said():
    tokenizer = with_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ConfigError, match="refuses these messages .roles must alternate.*roles are: user"):
        tokenizer.render_chat(CHAT)


def test_templates_run_in_a_sandbox():
    for attack in ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}"]:
        with pytest.raises(ConfigError, match="refuses these messages"):
            with_template(attack).render_chat(CHAT)


@pytest.mark.parametrize("messages", [[], "hello", {"role": "user"}, ["hello"], [{"content": "hello"}]])
def test_messages_that_are_none_are_explained(messages):
    with pytest.raises(ConfigError, match="'role'"):
        with_template(CHATML).render_chat(messages)


def test_a_model_without_a_template_and_a_damaged_template_are_explained():
    tokenizer = with_template(None)
    assert not tokenizer.has_chat_template
    with pytest.raises(ConfigError, match="m has no chat template; give it plain text"):
        tokenizer.apply_chat_template(CHAT)
    with pytest.raises(CheckpointError, match="damaged chat template"):
        with_template("{% if %}").render_chat(CHAT)
