"""A training folder with damaged files: one clear line each, the run goes on from what is whole, and ends as it would have."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.train.data.answers import AnswerStore
from foreword.train.data.extract import extract_features
from foreword.train.data.features import FeatureStore
from foreword.train.data.self_distill import DistillOptions, Question, self_distill
from foreword.train.loop.optimiser import optimiser_of
from foreword.train.loop.phase_times import Times
from foreword.train.loop.resume_state import Progress, load_checkpoint, save_checkpoint
from foreword.train.loop.session import train
from foreword.train.loop.settings import TrainSettings

OPTIONS = DistillOptions(num_tokens=100, max_new_tokens=6, held_out=0.4)
SETTINGS = TrainSettings(
    time_budget_s=600.0, num_tokens=100, max_new_tokens=6, draft_vocab_size=40, batch_tokens=48, max_steps=2,
    eval_every_s=1e9, dtype=torch.float32, num_heads=1,
)  # fmt: skip
JUNK = (b"", b"\x00" * 40, b"{", b"[" * 200_000, b"5", b"null", b'{"a": "b"}', b"\xff\xfe", b'{"loading": NaN}')


def nothing(*_):
    pass


class Quiet:
    """A reporter that says nothing."""

    phase = data = status = best = nothing


@pytest.fixture(scope="module")
def questions(llm) -> list[Question]:
    prompts = [llm.encode([{"role": "user", "content": f"question {i}"}]) for i in range(12)]
    return [Question(f"long/{i}", "long", "long", tuple(prompt)) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def whole(llm, questions, tmp_path_factory) -> Path:
    """Answers and features."""
    folder = tmp_path_factory.mktemp("data")
    answers = self_distill(llm, questions, AnswerStore(folder), OPTIONS, nothing)
    extract_features(llm.model.decoder, answers, store_in(folder, llm), nothing)
    return folder


@pytest.fixture
def data(whole, tmp_path) -> Path:
    """The same, to damage."""
    return Path(shutil.copytree(whole, tmp_path / "data"))


def store_in(folder: Path, llm: LLM) -> FeatureStore:
    store = FeatureStore(folder, (1, 2), llm.model.decoder.spec.hidden_size)
    store.begin({"model": "tiny"})
    return store


def shard_lines(folder: Path) -> list[str]:
    return (folder / "answers" / "00000.jsonl").read_text().splitlines(keepends=True)


# --- answers


def changed(line: str, **values: object) -> str:
    return json.dumps(json.loads(line) | values) + "\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], "no json\n", *lines[2:]],
        lambda lines: [lines[0], "[" * 100_000 + "\n", *lines[2:]],
        lambda lines: [lines[0], lines[1].replace("token_ids", "token_idz"), *lines[2:]],
        lambda lines: [lines[0], changed(lines[1], token_ids=[]), *lines[2:]],
        lambda lines: [lines[0], changed(lines[1], token_ids=[1.5]), *lines[2:]],
        lambda lines: [lines[0], changed(lines[1], prompt_len=10**9), *lines[2:]],
        lambda lines: [lines[0], changed(lines[1], split="neither"), *lines[2:]],
        lambda lines: [lines[0], changed(lines[1], seed=-1), *lines[2:]],
        lambda lines: [*lines, *lines],
    ],
)
def test_answers_behind_a_damaged_line_are_given_again(llm, questions, data, caplog, damage):
    lines = shard_lines(data)
    path = data / "answers" / "00000.jsonl"
    path.write_text("".join(damage(lines)))
    self_distill(llm, questions, AnswerStore(data), OPTIONS, nothing)
    assert shard_lines(data) == lines
    (told,) = caplog.records
    assert "answers are kept, the model gives those behind them again" in told.message
    assert path.with_name("00000.jsonl.damaged").read_text() == "".join(damage(lines))
    self_distill(llm, questions, AnswerStore(data), OPTIONS, nothing)
    assert len(caplog.records) == 1


def test_a_lost_line_is_asked_again_and_no_other(llm, questions, data, caplog):
    lines = shard_lines(data)
    (data / "answers" / "00000.jsonl").write_text("".join([lines[0], *lines[2:]]))
    self_distill(llm, questions, AnswerStore(data), replace(OPTIONS, num_tokens=101), nothing)
    assert shard_lines(data)[: len(lines)] == [lines[0], *lines[2:], lines[1]]
    assert not caplog.records


def test_a_lost_shard_is_noticed(llm, questions, data, caplog, monkeypatch):
    lines = shard_lines(data)
    monkeypatch.setattr("foreword.train.data.answers._SHARD_LINES", 4)
    folder = data / "answers"
    for number in range(0, len(lines), 4):
        (folder / f"{number // 4:05d}.jsonl").write_text("".join(lines[number : number + 4]))
    whole = AnswerStore(data).read()
    (folder / "00001.jsonl").unlink()
    assert AnswerStore(data).read() == whole[:4]
    assert self_distill(llm, questions, AnswerStore(data), OPTIONS, nothing) == whole
    (folder / "00000.jsonl").write_text("".join(lines[:3]))
    assert AnswerStore(data).read() == []
    assert "there are lines missing" in caplog.text


@pytest.mark.parametrize("junk", JUNK)
def test_answers_of_which_nobody_knows_what_they_are_stay_as_they_are(llm, questions, data, junk):
    lines = shard_lines(data)
    (data / "answers" / "info.json").write_bytes(junk)
    with pytest.raises(ConfigError, match=r"info\.json is damaged|holds answers made with"):
        self_distill(llm, questions, AnswerStore(data), OPTIONS, nothing)
    assert shard_lines(data) == lines


# --- features


def cut(name: str, num_bytes: int):
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-num_bytes])

    return damage


def zeros(name: str):
    """The last pages of a file are lost: what a computer that lost its power leaves."""

    def damage(folder: Path) -> None:
        path = folder / name
        data = path.read_bytes()
        path.write_bytes(data[:-20] + bytes(20))

    return damage


def index_line(number: int, change):
    def damage(folder: Path) -> None:
        path = folder / "index.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        lines[number] = change(lines[number])
        path.write_text("".join(lines))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(cut(name, 2) for name in ("tokens.i32", "taps.bf16", "hidden.bf16", "choices.i32")),
        *(zeros(name) for name in ("tokens.i32", "taps.bf16", "hidden.bf16")),
        cut("taps.bf16", 1 << 40),
        lambda folder: (folder / "hidden.bf16").unlink(),
        index_line(1, lambda line: "no json\n"),
        index_line(1, lambda line: ""),
        index_line(1, lambda line: changed(line, start=0)),
        index_line(-1, lambda line: changed(line, length=10**9)),
        index_line(1, lambda line: changed(line, checksum=5)),
        lambda folder: (folder / "info.json").write_bytes(b"[" * 200_000),
    ],
)
def test_lost_and_damaged_features_are_told_and_read_again(llm, data, whole, caplog, damage):
    expected = store_in(whole, llm)
    damage(data / "features")
    store = store_in(data, llm)
    assert len(caplog.records) == 1
    assert "read again" in caplog.text
    assert len(store.entries) < len(expected.entries)
    extract_features(llm.model.decoder, AnswerStore(data).read(), store, nothing)
    again = store_in(data, llm)
    assert len(caplog.records) == 1
    assert again.entries == expected.entries
    assert torch.equal(again.rows(0, again.num_rows).hidden, expected.rows(0, expected.num_rows).hidden)


def test_rows_without_checksums_of_an_older_version_are_taken_unless_they_are_missing(llm, data, caplog):
    path = data / "features" / "index.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "checksum"}) + "\n" for line in lines))
    assert len(store_in(data, llm).entries) == len(lines)
    cut("taps.bf16", 1)(data / "features")
    assert len(store_in(data, llm).entries) == len(lines) - 1
    assert "features of 1 answers are read again" in caplog.text


def test_features_of_other_answers_are_read_again(llm, data, caplog):
    answers = AnswerStore(data).read()
    answers[2] = replace(answers[2], token_ids=(*answers[2].token_ids[:-1], 77))
    store = store_in(data, llm)
    extract_features(llm.model.decoder, answers, store, nothing)
    assert f"features of {len(answers) - 2} answers are read again" in caplog.text
    entry = store.entries[2]
    assert store.token_ids(entry.start, entry.start + entry.length)[-1] == 77


# --- the run


def small_run(seed: int):
    torch.manual_seed(seed)
    module = torch.nn.Linear(8, 8)
    parts = [{"params": [module.weight], "is_inner": False}, {"params": [module.bias], "is_inner": False}]
    return module, optimiser_of(parts, 0.1)


@pytest.fixture
def saved(tmp_path) -> Path:
    """Two states of a run: after step 1, and after step 2."""
    path = tmp_path / "resume" / "checkpoint.pt"
    module, optimiser = small_run(0)
    for step in (1, 2):
        module(torch.ones(1, 8)).sum().backward()
        optimiser.step()
        save_checkpoint(path, module, optimiser, Progress(step=step), {"seed": 0})
    return path


def states(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), path.with_name("checkpoint.pt.before").read_bytes()


def test_a_whole_state_is_gone_on_with(saved, caplog):
    module, optimiser = small_run(1)
    assert load_checkpoint(saved, module, optimiser, {"seed": 0}).step == 2
    assert not caplog.records
    saved.unlink()  # killed between two renames
    assert load_checkpoint(saved, module, optimiser, {"seed": 0}).step == 1


def test_every_damage_of_a_state_is_told_and_the_one_before_it_taken(saved, caplog):
    data, _ = states(saved)
    numbers = random.Random(0)
    places = [numbers.randrange(len(data)) for _ in range(12)]
    flipped = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in places]
    for junk in (*JUNK, data[: len(data) // 2], data + b"\0", *flipped):
        caplog.clear()
        saved.write_bytes(junk)
        module, optimiser = small_run(1)
        assert load_checkpoint(saved, module, optimiser, {"seed": 0}).step == 1
        (told,) = caplog.records
        assert "is damaged" in told.message
        assert "\n" not in told.message
        assert saved.with_name("checkpoint.pt.damaged").read_bytes() == junk


def test_where_both_are_damaged_the_run_begins_anew_with_its_own_first_weights(saved, caplog):
    saved.write_bytes(b"junk")
    saved.with_name("checkpoint.pt.before").write_bytes(b"junk")
    module, optimiser = small_run(1)
    fresh = {name: value.clone() for name, value in module.state_dict().items()}
    assert load_checkpoint(saved, module, optimiser, {"seed": 0}) == Progress()
    assert all(torch.equal(fresh[name], value) for name, value in module.state_dict().items())
    assert len(caplog.records) == 2
    assert load_checkpoint(saved, module, optimiser, {"seed": 0}) == Progress()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("part", ["module", "optimiser", "progress"])
def test_a_sealed_state_with_parts_of_another_shape_leaves_nothing_behind(tmp_path, caplog, part):
    module, optimiser = small_run(1)
    fresh = {name: value.clone() for name, value in module.state_dict().items()}
    state = {"module": small_run(2)[0].state_dict(), "optimiser": optimiser.state_dict(), "progress": {}, "facts": {}}
    state |= {"progress": {"position": {"epoch": 0, "batch": 0}, "order": [0, 0]}} | {part: {"parts": 5}}
    torch.save(state, tmp_path / "c.pt")
    assert load_checkpoint(tmp_path / "c.pt", module, optimiser, {}) == Progress()
    assert all(torch.equal(fresh[name], value) for name, value in module.state_dict().items())
    assert len(caplog.records) == 1


def test_a_state_of_another_run_is_refused_and_stays(saved):
    data = states(saved)
    with pytest.raises(ConfigError, match="a run with seed 0, now it is 1"):
        load_checkpoint(saved, *small_run(1), {"seed": 1})
    assert states(saved) == data


@pytest.mark.parametrize("junk", JUNK)
def test_damaged_times_begin_anew(tmp_path, caplog, junk):
    path = tmp_path / "times.json"
    path.write_bytes(junk)
    assert Times(path, 0.0).values == {}
    assert "is damaged" in caplog.text
    assert "the time budget begins anew" in caplog.text
    assert Times(path, 0.0).values == {}
    assert len(caplog.records) == 1


def test_a_run_goes_on_whatever_of_it_is_damaged(llm, questions, whole, tmp_path, caplog, monkeypatch):
    """Half of every small file, as a failing disk leaves it: lines, no traceback, and a drafter at the end."""
    from foreword.train.loop import session

    monkeypatch.setattr(session, "DistillOptions", lambda **options: DistillOptions(held_out=0.4, **options))
    monkeypatch.setattr(session, "verify_and_describe", lambda *_: None)
    out = tmp_path / "out"
    run = ("medusa", llm, questions, out)
    assert train(*run, SETTINGS, Quiet()).step == 2
    names = ["times.json", "draft_vocab.json", "checkpoint.pt"]
    for name in names:
        path = out / "resume" / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    caplog.clear()
    assert train(*run, replace(SETTINGS, max_steps=3), Quiet()).step == 3
    assert [record.message.partition(" is damaged")[0] for record in caplog.records] == [
        str(out / "resume" / name) for name in names[:2]
    ], "without its vocabulary the state says nothing: it is put aside with it"
    assert (out / "resume" / "checkpoint.pt.damaged").is_file()
    assert (out / "model.safetensors").is_file()
