"""Files of prompts: three forms, other keys ignored, every bad line named."""

import json

import pytest

from foreword.cli.prompt_file import read_prompts
from foreword.errors import ConfigError


def write(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_three_forms_and_other_keys(tmp_path):
    path = write(
        tmp_path,
        {"id": "a/1", "category": "chat", "turns": ["hello", "and then?"], "source": "somewhere"},
        "",
        {"id": "a/2", "prompt": "Once", "answer": 3},
        {"token_ids": [1, 2]},
    )
    chat, text, ids = read_prompts(path)
    assert (chat.id, chat.category, chat.turns) == ("a/1", "chat", ("hello", "and then?"))
    assert (text.id, text.category, text.prompt) == ("a/2", None, "Once")
    assert (ids.id, ids.token_ids) == (4, (1, 2)), "a line without an id is called by its number"


def test_limit_stops_reading_before_later_lines(tmp_path):
    path = write(tmp_path, {"prompt": "a"}, {"prompt": "b"}, "not JSON")
    assert [line.prompt for line in read_prompts(path, 2)] == ["a", "b"]


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"id": 1, "prompt": "one\u2028two\x85three"}\r\n{"id": 2, "prompt": "x"}', encoding="utf-8-sig", newline=""
    )
    assert [line.prompt for line in read_prompts(path)] == ["one\u2028two\x85three", "x"]


def test_a_reference_that_is_no_text_is_said_once(tmp_path, capsys):
    lines = ({"prompt": "a", "reference": "text"}, {"prompt": "b", "reference": ["c"]}, {"prompt": "d", "reference": 5})
    path = write(tmp_path, *lines, {"prompt": "e", "reference": None})
    assert [line.reference for line in read_prompts(path)] == ["text", None, None, None]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert 'line 2: reference is ["c"], which is not a text and is ignored, as in 1 more' in err
    read_prompts(path, limit=1)
    assert capsys.readouterr().err == ""


BAD_LINES = {
    "{": "line 2 is not JSON: .* at column",
    "[" * 100_000: "line 2 is not a prompt: its lists are nested too deep",
    "[1]": "line 2 is not a JSON object",
    '{"id": 1}': "line 2 has no prompt; give exactly one of turns, prompt, token_ids",
    '{"prompt": "a", "turns": ["b"]}': "line 2 has turns and prompt; give exactly one",
    '{"prompt": ""}': 'line 2: prompt is ""; it must be a text that is not empty',
    '{"prompt": 3}': "line 2: prompt is 3",
    '{"turns": []}': r"line 2: turns is \[\]; it must be a list of at least one, all texts",
    '{"turns": "hello"}': 'line 2: turns is "hello"; it must be a list',
    '{"turns": ["a", 2]}': "line 2: turns is .*all texts",
    '{"token_ids": [1, "2"]}': "line 2: token_ids is .*all whole numbers",
    '{"token_ids": [true]}': "line 2: token_ids is",
    '{"id": [], "prompt": "a"}': r"line 2: id is \[\]; allowed: a text or a number",
    '{"category": 5, "prompt": "a"}': "line 2: category is 5; allowed: a text",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(tmp_path, line):
    path = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(ConfigError, match=f"prompts.jsonl, {BAD_LINES[line]}"):
        read_prompts(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompts(write(tmp_path, ""))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe4"}')
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_prompts(tmp_path / "latin.jsonl")
    with pytest.raises(ConfigError, match="limit is 0; allowed: 1 or above"):
        read_prompts(write(tmp_path, {"prompt": "a"}), limit=0)


def test_what_bench_writes_for_other_engines_can_be_read(tmp_path):
    (line,) = read_prompts(write(tmp_path, {"id": "a", "category": "b", "ids": [1, 2], "text": "x"}))
    assert (line.id, line.category, line.token_ids) == ("a", "b", (1, 2))
    (line,) = read_prompts(write(tmp_path, {"prompt": "once", "ids": [1, 2]}))
    assert line.prompt == "once", "beside a prompt other keys are ignored"
