"""Prompts that the model writes itself."""

import json
from types import SimpleNamespace

import pytest

from foreword.cli.prompt_file import read_prompts
from foreword.errors import ConfigError
from foreword.train.data import self_prompts as own_prompts
from foreword.train.data.self_prompts import BEGINNINGS, NAME, beginning, user_turn, write_own_prompts
from tests.support.tiny_files import add_sentencepiece_tokenizer
from tests.unit.test_checkpoint_tokenizer import gguf_tokenizer


@pytest.fixture
def ends_soon(llm, monkeypatch):
    """A random model says its end token hardly ever: here half of the vocabulary ends what it says."""
    prefix_ids, _ = user_turn(llm)
    monkeypatch.setattr(own_prompts, "user_turn", lambda _: (prefix_ids, {"stop_token_ids": tuple(range(100, 250))}))
    monkeypatch.setattr(own_prompts, "_CHUNK", 16)
    monkeypatch.setattr(own_prompts, "_LEAST_CHARS", 2)


def nothing(*_):
    pass


def test_the_prefix_and_what_ends_it_are_those_of_the_template(llm):
    prefix_ids, end = user_turn(llm)
    whole = llm.encode([{"role": "user", "content": "hello"}])
    hello = llm.tokenizer.encode("hello", add_special_tokens=False)
    rest = whole[len(prefix_ids) + len(hello) :]
    assert whole[: len(prefix_ids)] == prefix_ids
    assert whole[len(prefix_ids) : len(prefix_ids) + len(hello)] == hello
    assert rest[0] in llm.tokenizer.special_ids
    assert end == {"stop_token_ids": tuple(rest[:1])}


def test_where_a_text_ends_what_a_user_says_it_is_no_part_of_it(llm, monkeypatch):
    def render_chat(messages, *_, **__):
        return f"[INST] {messages[0]['content']} [/INST]"

    monkeypatch.setattr(llm.tokenizer, "render_chat", render_chat)
    prefix_ids, end = user_turn(llm)
    assert llm.tokenizer.decode(prefix_ids) == "[INST] "
    assert end == {"stop": ("[/INST]",)}


@pytest.mark.usefixtures("ends_soon")
def test_what_it_writes_are_different_prompts_that_ended(llm, tmp_path):
    counts = []
    num = write_own_prompts(llm, tmp_path / "own.jsonl", 6, 0, lambda done, total: counts.append((done, total)))
    lines = read_prompts(tmp_path / "own.jsonl")
    assert num == len(lines) == len({line.turns for line in lines}) == 6
    assert all(line.turns and line.turns[0].strip() for line in lines)
    assert (counts[0], counts[-1]) == ((0, 6), (6, 6))
    assert counts == sorted(counts), "those that ended before others count at once"


@pytest.mark.usefixtures("ends_soon")
def test_every_second_one_goes_on_from_words_it_was_given(llm, tmp_path):
    write_own_prompts(llm, tmp_path / "own.jsonl", 12, 0, nothing)
    lines = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()]
    begun = {int(line["id"].rpartition("/")[2]): line["turns"][0] for line in lines}
    assert {draw % 2 for draw in begun} == {0, 1}
    assert all(len(text) > len(beginning(draw)) for draw, text in begun.items())
    assert all(text.startswith(beginning(draw)) for draw, text in begun.items())
    assert {beginning(draw) for draw in range(2 * len(BEGINNINGS))} == {"", *BEGINNINGS}
    assert not any(words != words.strip() for words in BEGINNINGS)  # the model says what follows, spaces too


def test_given_words_do_not_grow_together_with_what_follows(llm, tmp_path, monkeypatch):
    """Tokenizers of SentencePiece leave the space out before what they decode."""
    spm = gguf_tokenizer(tmp_path / "s.gguf", add_sentencepiece_tokenizer)
    fake = SimpleNamespace(tokenizer=spm)
    for words in ("ab", "ab:"):
        ids = spm.encode(f"{words} ab", add_special_tokens=False)[len(spm.encode(words, add_special_tokens=False)) :]
        assert spm.decode(ids) == "ab", "the space is lost"
        assert own_prompts._gap(fake, words, ids) == " "
        assert own_prompts._gap(fake, "", ids) == ""
    for words, after in (("ab", " cd"), ("ab", "cd"), ("", " cd")):
        ids = llm.tokenizer.encode(after, add_special_tokens=False)
        assert own_prompts._gap(llm, words, ids) == "", "byte-level ones say it themselves"


@pytest.mark.usefixtures("ends_soon")
@pytest.mark.parametrize("damage", [b"", b'{"id": "own_prompts/9'])
def test_who_is_killed_goes_on_as_if_nothing_had_been(llm, tmp_path, damage):
    write_own_prompts(llm, tmp_path / "whole.jsonl", 6, 0, nothing)
    write_own_prompts(llm, tmp_path / "parts.jsonl", 3, 0, nothing)
    with (tmp_path / "parts.jsonl").open("ab") as file:
        file.write(damage)
    write_own_prompts(llm, tmp_path / "parts.jsonl", 6, 0, nothing)
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.usefixtures("ends_soon")
def test_another_seed_writes_others(llm, tmp_path):
    texts = []
    for seed in (0, 1):
        write_own_prompts(llm, tmp_path / f"{seed}.jsonl", 4, seed, nothing)
        texts.append({json.loads(line)["turns"][0] for line in (tmp_path / f"{seed}.jsonl").read_text().splitlines()})
    assert texts[0] != texts[1]


@pytest.mark.usefixtures("ends_soon")
@pytest.mark.parametrize("least", [0, 1, 2, 5])
def test_past_its_time_it_stops_as_soon_as_there_are_enough(llm, tmp_path, least):
    num = write_own_prompts(llm, tmp_path / "own.jsonl", 1000, 0, nothing, deadline_s=0.0, least=least)
    assert least <= num <= least + 1


def test_past_its_time_it_waits_for_no_draw_that_goes_on_and_on(llm, tmp_path, monkeypatch):
    def texts(*_):
        yield from [(5, "five"), (7, None), (99, "ninety-nine"), (3, "three")]
        raise AssertionError("draw 0 was waited for")

    monkeypatch.setattr(own_prompts, "_texts", texts)
    assert write_own_prompts(llm, tmp_path / "own.jsonl", 1000, 0, nothing, deadline_s=0.0, least=3) == 3
    assert [line.id for line in read_prompts(tmp_path / "own.jsonl")] == [f"{NAME}/{draw}" for draw in (3, 5, 99)]


def test_in_time_they_are_written_in_their_order_whichever_ends_first(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(own_prompts, "_texts", lambda *_: iter([(2, "two"), (0, "zero"), (1, None), (3, "three")]))
    assert write_own_prompts(llm, tmp_path / "own.jsonl", 3, 0, nothing) == 3
    assert [line.id for line in read_prompts(tmp_path / "own.jsonl")] == [f"{NAME}/{draw}" for draw in (0, 2, 3)]


@pytest.mark.usefixtures("ends_soon")
def test_a_model_that_writes_no_prompts_is_given_up(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(own_prompts, "_LEAST_CHARS", 10**6)
    monkeypatch.setattr(own_prompts, "_POOR_AFTER", 32)
    with pytest.raises(ConfigError, match=r"of 32 texts .* only 0 could be prompts; give prompts as files"):
        write_own_prompts(llm, tmp_path / "own.jsonl", 6, 0, nothing)


def test_without_a_chat_template_there_is_no_users_place(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(llm.tokenizer, "_template", None)
    with pytest.raises(ConfigError, match="no chat template"):
        write_own_prompts(llm, tmp_path / "own.jsonl", 1, 0, nothing)
