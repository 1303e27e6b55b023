"""A training run: its data, its order, its breaks, its command."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foreword.cli.commands.train import METHOD_NAMES
from foreword.cli.options import parse_duration
from foreword.cli.render.train_report import LineReporter, kept_text
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.runtime.base import Need
from foreword.sampling.params import SamplingParams
from foreword.seal import seal_path
from foreword.train.data.answers import HELD_OUT, TRAIN, Answer, AnswerStore, is_usable
from foreword.train.data.batches import BatchOrder, Position, collate, places
from foreword.train.data.extract import extract_features
from foreword.train.data.features import Entry, FeatureStore
from foreword.train.data.self_distill import DistillOptions, schedule, self_distill, splits
from foreword.train.data.vocabulary import count_draft_vocab, draft_ids, vocab_maps
from foreword.train.loop.optimiser import optimiser_of
from foreword.train.loop.resume_state import Progress, load_checkpoint, save_checkpoint
from foreword.train.loop.session import COUNTED, METHODS, live_prompts, target_tables, train
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions, Trainer
from foreword.train.methods import eagle3
from foreword.train.methods.method import Losses, Measures
from foreword.train.out.live_speed import Speeds, measure_speeds
from foreword.train.out.simulate import measure, tokens_per_step
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.tiny_chat import write_tiny_chat
from tests.unit.conftest import OPTIONS


def nothing(*_):
    pass


class Quiet:
    """A reporter that keeps what it is told."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.phases, self.statuses, self.num_best, self._stop_at = [], [], 0, stop_at

    def phase(self, text, most_s=0.0):
        self.phases.append(text)

    def data(self, done, total):
        pass

    def status(self, status):
        self.statuses.append(status)
        if status.step == self._stop_at:
            raise KeyboardInterrupt

    def best(self, measures, verified):
        self.num_best += 1


def test_groups_take_turns_and_half_of_the_answers_are_greedy(questions):
    jobs = list(schedule(questions, OPTIONS))
    assert [job.question.group for job in jobs[:18]] == ["long", "short"] * 9
    assert len({(job.question.id, job.temperature) for job in jobs}) == len(jobs) == 3 * len(questions)
    first_round = [job.temperature for job in jobs if job.question.group == "long"][:20]
    assert sorted(first_round) == [0.0] * 10 + [0.7] * 5 + [1.0] * 5
    assert list(schedule(questions, OPTIONS)) == jobs


def test_a_question_keeps_its_side():
    sides = splits((f"q/{i}" for i in range(2000)), 0.25)
    assert 0.22 < list(sides.values()).count(HELD_OUT) / 2000 < 0.28
    assert sides | splits((f"q/{i}" for i in range(1000, 3000)), 0.25) == splits((f"q/{i}" for i in range(3000)), 0.25)


@pytest.mark.parametrize("held_out", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("num", range(1, 12))
def test_two_questions_are_enough_for_both_sides(num, held_out):
    ids = [f"q/{i}" for i in range(num)]
    sides = splits(ids, held_out)
    assert set(sides) == set(ids)
    assert set(sides.values()) == {HELD_OUT, TRAIN} or num == 1
    assert splits(reversed(ids), held_out) == sides


def test_answers_go_on_where_a_kill_left_them(llm, questions, data, tmp_path):
    _, whole, _ = data
    store = AnswerStore(tmp_path)
    self_distill(llm, questions, store, DistillOptions(num_tokens=90, max_new_tokens=12, held_out=0.4), nothing)
    shard = tmp_path / "answers" / "00000.jsonl"
    lines = shard.read_bytes()
    shard.write_bytes(lines[:-25])  # the last line half written
    resumed = self_distill(llm, questions, store, OPTIONS, nothing)
    assert resumed == whole == AnswerStore(tmp_path).read()
    assert sum(a.answer_len for a in whole) >= OPTIONS.num_tokens
    with pytest.raises(ConfigError, match="max_new_tokens 12, now it is 13"):
        self_distill(llm, questions, store, DistillOptions(max_new_tokens=13, held_out=0.4), nothing)


def test_greedy_answers_are_the_targets_own_words(llm, data):
    answer = next(a for a in data[1] if a.temperature == 0.0)
    (result,) = llm.generate([list(answer.token_ids[: answer.prompt_len])], SamplingParams(max_tokens=12))
    assert result.token_ids == list(answer.token_ids[answer.prompt_len :])


def test_features_are_those_of_one_pass(llm, data):
    """Packed passes give each answer what a pass of its own gives; a greedy answer follows the stored choices."""
    _, answers, store = data
    decoder = llm.model.decoder
    for entry, answer in list(zip(store.entries, answers, strict=True))[:4]:
        cache = decoder.new_cache()
        slot = cache.open(entry.length)
        out = decoder.forward(pack([DraftTree.chain(list(answer.token_ids))], [0], [slot]), cache, Need(taps=(1, 2)))
        rows = store.rows(entry.start, entry.start + entry.length)
        assert rows.token_ids.tolist() == list(answer.token_ids)
        torch.testing.assert_close(rows.taps.float(), out.taps, rtol=2e-2, atol=2e-2)
        assert (rows.choices[: entry.prompt_len - 1] == -1).all()
        if answer.temperature == 0.0:
            assert rows.choices[entry.prompt_len - 1 : -1].tolist() == list(answer.token_ids[entry.prompt_len :])


def test_long_answers_are_read_in_chunks(llm, tmp_path, monkeypatch):
    from foreword.train.data import extract

    tokens = tuple(torch.randint(40, 200, (50,), generator=torch.Generator().manual_seed(0)).tolist())
    answers = [
        Answer("a", None, "train", 20, tokens, 0.0, 0, "stop"),
        Answer("b", None, "train", 3, tokens[:9], 0.0, 0, "stop"),
    ]
    found = []
    for rows in (512, 16):
        monkeypatch.setattr(extract, "_ROWS", rows)
        store = FeatureStore(tmp_path / str(rows), (1, 2), llm.model.decoder.spec.hidden_size)
        store.begin({})
        extract_features(llm.model.decoder, answers, store, nothing)
        found.append(store.rows(0, store.num_rows))
    torch.testing.assert_close(found[0].taps.float(), found[1].taps.float(), rtol=2e-2, atol=2e-2)
    assert torch.equal(found[0].choices, found[1].choices)
    assert (found[0].choices[:19] == -1).all()
    assert (found[0].choices[19:50] >= 0).all()


def test_half_written_features_are_read_again(llm, data, tmp_path):
    _, answers, whole = data
    store = FeatureStore(tmp_path, (1, 2), whole.hidden_size)
    store.begin({})
    extract_features(llm.model.decoder, answers[:5], store, nothing)
    with (store.folder / "taps.bf16").open("ab") as file:
        file.write(b"rows of an answer without a line")
    again = FeatureStore(tmp_path, (1, 2), whole.hidden_size)
    again.begin({})
    extract_features(llm.model.decoder, answers, again, nothing)
    assert again.entries == whole.entries
    assert torch.equal(again.rows(0, again.num_rows).taps, whole.rows(0, whole.num_rows).taps)


def test_the_loss_mask_follows_the_chat_template(llm, data):
    """What the mask covers is the answer but its first token, nothing of the template and nothing of the question."""
    _, answers, store = data
    entries = [e for e in store.entries if e.answer_len > 4][:3]
    batch = collate(store, entries, 512)
    is_place, _ = places(batch, 0)
    for i, entry in enumerate(entries):
        answer = next(a for e, a in zip(store.entries, answers, strict=True) if e == entry)
        columns = torch.arange(batch.num_columns - batch.answer_columns, batch.num_columns - 1)[is_place[i]]
        masked = batch.token_ids[i, columns + 2].tolist()
        assert masked == list(answer.token_ids[entry.prompt_len + 1 :])
        assert "assistant" in llm.tokenizer.decode(list(answer.token_ids[: entry.prompt_len]))
    assert is_place.sum() == sum(e.answer_len - 1 for e in entries)


def test_cropping_leaves_out_the_prompts_beginning(data):
    store = data[2]
    entry = max(store.entries, key=lambda e: e.answer_len)
    batch = collate(store, [entry], entry.answer_len + 3)
    assert batch.token_ids[0].tolist() == store.rows(0, store.num_rows).token_ids[
        entry.start + entry.prompt_len - 3 : entry.start + entry.length
    ].tolist()  # fmt: skip
    assert int(batch.answer_starts[0]) == 2


def test_every_epoch_has_each_answer_once_in_an_order_of_its_own():
    entries = [Entry(10 * i, 10, 10 - n, "train", None, 0.0) for i, n in enumerate([2, 9, 4, 7, 3, 8, 5, 6] * 5)]
    order = BatchOrder(entries, 24, seed=3)
    position, epochs = Position(), [[], [], []]
    while position.epoch < 3:
        batch = order.batch(position)
        assert len(batch) == 1 or len(batch) * max(e.answer_len for e in batch) <= 24
        epochs[position.epoch] += batch
        position = order.after(position)
    assert all(sorted(e.start for e in epoch) == [e.start for e in entries] for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert BatchOrder(entries, 24, seed=3).batch(Position(1, 2)) == order.batch(Position(1, 2))


def test_the_draft_vocabulary_round_trips():
    answers = [np.array([9, 9, 9, 4, 4, 7], dtype=np.int32), np.array([4, 9, 2], dtype=np.int32)]
    ids = count_draft_vocab(answers, vocab_size=12, draft_vocab_size=4, forced=(11,))
    assert ids.tolist() == [2, 4, 9, 11]  # 2 and 7 are as frequent: the lower id
    d2t, t2d = vocab_maps(ids, 12)
    assert (torch.arange(4) + d2t).tolist() == ids.tolist()
    assert t2d.nonzero().flatten().tolist() == ids.tolist()
    assert draft_ids(ids, 12)[ids].tolist() == [0, 1, 2, 3]
    assert (draft_ids(ids, 12) >= 0).tolist() == t2d.tolist()
    with pytest.raises(ConfigError, match="draft_vocab_size is 13; allowed: 1 to the model's 12"):
        count_draft_vocab(answers, 12, 13, forced=(11,))


def test_walking_an_answer_counts_as_decoding_does():
    # From place 0 two guesses are right: 3 tokens; from place 3 none: 1; from place 4 two, of which one is left: 1 + 1.
    assert tokens_per_step([[2, 0, 0, 0, 1, 0]]) == 6 / 3
    measures = measure([[2, 0, 0, 0, 1, 0]], depth=3, shares={})
    assert measures.accept_by_depth == [2 / 6, 1 / 2, 0.0]


SETTINGS = TrainSettings(
    time_budget_s=600.0, num_tokens=400, max_new_tokens=12, draft_vocab_size=64, unroll=2, batch_tokens=48, max_steps=6,
    eval_every_s=1e9, dtype=torch.float32, seed=0,
)  # fmt: skip


@pytest.fixture
def few_steps(monkeypatch):
    """A command ends after a few steps, well within its time."""
    from foreword.train.loop import session

    options = session.LoopOptions
    monkeypatch.setattr(session, "LoopOptions", lambda **given: options(**{**given, "max_steps": 3}))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "resume" / "checkpoint.pt", weights_only=True)["module"]


def test_a_run_that_was_killed_ends_as_one_that_was_not(llm, questions, data, tmp_path, wide_split, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    progress = train("eagle3", llm, questions, whole, SETTINGS, Quiet(), data=data[0])
    assert progress.step == 6
    options = LoopOptions
    monkeypatch.setattr("foreword.train.loop.session.LoopOptions", lambda **o: options(**o, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        train("eagle3", llm, questions, killed, SETTINGS, Quiet(stop_at=4), data=data[0])
    reporter = Quiet()
    train("eagle3", llm, questions, killed, SETTINGS, reporter, data=data[0])
    assert [status.step for status in reporter.statuses] == [5, 6]
    first, second = weights(whole), weights(killed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    settings = replace(SETTINGS, draft_vocab_size=32)
    with pytest.raises(ConfigError, match="draft_vocab_size 64, now it is 32"):
        train("eagle3", llm, questions, killed, settings, Quiet(), data=data[0])


def test_going_on_with_other_batches_begins_an_epoch(llm, questions, data, tmp_path, wide_split):
    train("eagle3", llm, questions, tmp_path, replace(SETTINGS, max_steps=2), Quiet(), data=data[0])
    settings = replace(SETTINGS, max_steps=3, batch_tokens=24, learning_rate=1e-4, unroll=1)
    progress = train("eagle3", llm, questions, tmp_path, settings, Quiet(), data=data[0])
    assert (progress.step, progress.position) == (3, Position(1, 1))


def test_the_decoder_drafts_what_the_trainer_measured(llm, data, tmp_path):
    """Trainer and drafter agree to the step: walking held-out answers offline counts the passes that decoding takes."""
    _, answers, store = data
    settings = TrainSettings(draft_vocab_size=64, unroll=3, dtype=torch.float32)
    target = target_tables(llm)
    trained = eagle3.make(target, store, settings, tmp_path)
    net = trained.module
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    greedy = [e for e in store.entries if e.temperature == 0.0 and e.answer_len > 2]
    batch = collate(store, greedy, 512)
    for _ in range(36):
        optimiser.zero_grad()
        trained.loss(batch).loss.backward()
        optimiser.step()
    with torch.no_grad():  # as the file has them
        net.fc.weight.div_(net.feature_scale)
        net.feature_scale.fill_(1.0)
        for parameter in net.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    trained.save(tmp_path, {})
    depth = trained.options.eval_depth
    config = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": depth}
    # The trainer's network reads every position of a prompt: nothing of it may come from the prefix cache.
    drafting = LLM(llm.model, {**config, "draft_tree_width": 1, "draft_tree_depth": depth}, prefix_cache=False)
    prompts = [list(a.token_ids[: a.prompt_len]) for a, e in zip(answers, store.entries, strict=True) if e in greedy]
    results = drafting.generate(prompts, SamplingParams(max_tokens=12))
    live = sum(r.stats.new_tokens - 1 for r in results) / sum(r.stats.num_steps for r in results)
    measures = trained.evaluate([(batch, [None] * len(greedy))])
    assert measures.tokens_per_step == pytest.approx(live)
    assert live > 1.5


@pytest.mark.usefixtures("wide_split", "few_steps")
def test_the_command_leaves_a_drafter_with_its_card(tmp_path, capsys):
    from foreword.cli.main import main

    model = write_tiny_chat(tmp_path)
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"m/{i}", "turns": [f"word {i}"]}) + "\n" for i in range(12)))
    out = tmp_path / "drafter"
    arguments = ["train", "eagle3", "--model", str(model), "--prompts", str(prompts), "--out", str(out)]
    arguments += ["--time-budget", "90s", "--num-tokens", "150", "--max-new-tokens", "8", "--draft-vocab-size", "50"]
    arguments += ["--runtime", "torch", "--licence", "mine=CC0", "--batch-tokens", "64"]
    assert main(arguments) == 0
    err = capsys.readouterr().err
    assert "the model answers the prompts" in err
    assert "tokens per step on held-out prompts" in err
    assert "by the verifier" in err
    assert re.search(
        r"on this machine (held-out answers come|a held-out answer comes) \d+\.\d\d times as fast with it", err
    )
    assert {"config.json", "model.safetensors", "README.md", "curve.json", "curve.svg"} <= {
        p.name for p in out.iterdir()
    }
    card = (out / "README.md").read_text()
    assert "| mine | CC0 |" in card
    assert json.loads((out / "curve.json").read_text())[-1]["step"] > 0
    times = json.loads((out / "resume" / "times.json").read_text())
    assert set(times) == {"loading", "answers", "features"}
    assert times["loading"] > 0, "loading belongs to the budget"


def test_a_run_from_before_there_were_several_optimisers_goes_on_or_says_why_not(tmp_path):
    module = torch.nn.Linear(4, 4)
    optimiser = optimiser_of(
        [{"params": [module.weight], "is_inner": False}, {"params": [module.bias], "is_inner": False}], 0.1
    )
    module(torch.ones(1, 4)).sum().backward()
    optimiser.step()
    save_checkpoint(tmp_path / "c.pt", module, optimiser, Progress(step=3), {"seed": 0})
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    (state["optimiser"],) = state["optimiser"]["parts"]
    torch.save(state, tmp_path / "c.pt")
    seal_path(tmp_path / "c.pt").unlink()  # there were none
    assert load_checkpoint(tmp_path / "c.pt", module, optimiser, {"seed": 0, "optimiser": "adamw"}).step == 3
    with pytest.raises(ConfigError, match="moved by adamw, here it would be muon"):
        load_checkpoint(tmp_path / "c.pt", module, optimiser, {"seed": 0, "optimiser": "muon"})


@pytest.mark.usefixtures("wide_split", "few_steps")
def test_who_has_no_prompts_lets_the_model_write_them_once(tmp_path, capsys, monkeypatch):
    from foreword.cli.main import main
    from foreword.train.data import self_prompts as own_prompts

    user_turn = own_prompts.user_turn  # a random model hardly ever ends: here half of the vocabulary does
    monkeypatch.setattr(
        own_prompts, "user_turn", lambda llm: (user_turn(llm)[0], {"stop_token_ids": tuple(range(100, 250))})
    )
    monkeypatch.setattr(own_prompts, "_LEAST_CHARS", 2)
    monkeypatch.setattr(own_prompts, "_CHUNK", 16)
    monkeypatch.setattr(
        sys.modules["foreword.cli.commands.train"], "_own_share", lambda _: 10.0
    )  # all, however slow the machine
    model, out = write_tiny_chat(tmp_path), tmp_path / "drafter"
    arguments = [
        "train",
        "eagle3",
        "--model",
        str(model),
        "--out",
        str(out),
        "--time-budget",
        "90s",
        "--num-tokens",
        "100",
    ]
    arguments += ["--max-new-tokens", "8", "--draft-vocab-size", "50", "--runtime", "torch", "--batch-tokens", "64"]
    assert main([*arguments, "--own-prompts", "12"]) == 0
    assert "the model writes prompts" in capsys.readouterr().err
    assert "| own_prompts | written by the model itself |" in (out / "README.md").read_text()
    written = (out / "data" / "own_prompts.jsonl").read_bytes()
    assert len(written.splitlines()) == 12
    assert main([*arguments, "--own-prompts", "12"]) == 0, "goes on with the same"
    assert "the model writes prompts" not in capsys.readouterr().err
    assert (out / "data" / "own_prompts.jsonl").read_bytes() == written
    (out / "data" / "own_prompts.jsonl").unlink()
    assert main([*arguments, "--own-prompts", "12"]) == 2
    assert "were made without prompts of the model's own" in capsys.readouterr().err


def test_a_run_needs_prompts_of_some_kind(tmp_path, capsys):
    from foreword.cli.main import main

    assert main(["train", "eagle3", "--out", str(tmp_path / "o")]) == 2
    assert "let the model write some, such as --own-prompts 5000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "eagle9"}, "unknown method 'eagle9'"),
        ({"--time-budget": "2 hours"}, "allowed: a time such as 90s, 30m, 2h or 1h30m"),
        ({"--unroll": "0"}, "unroll is 0; allowed: 1 or above"),
        ({"--licence": "MIT"}, "allowed: NAME=TEXT"),
    ],
)
def test_mistakes_are_one_line(change, message, tmp_path, capsys):
    from foreword.cli.main import main

    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 2)
    options = {"--prompts": str(prompts), "--out": str(tmp_path / "o")} | {
        k: v for k, v in change.items() if k[0] == "-"
    }
    arguments = ["train", change.get("method", "eagle3"), *[part for pair in options.items() for part in pair]]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


FEW = {
    "one in a file": ('{"prompt": "a"}\n', "0"),
    "the same twice": ('{"id": "x", "prompt": "a"}\n' * 2, "0"),
    "one of its own": ("", "1"),
}


@pytest.mark.parametrize(("lines", "own"), FEW.values(), ids=FEW)
def test_too_few_prompts_are_refused_before_the_model_is_looked_for(lines, own, tmp_path, capsys):
    from foreword.cli.main import main

    prompts = tmp_path / "p.jsonl"
    prompts.write_text(lines)
    files = ["--prompts", str(prompts)] if lines else []
    command = ["train", "eagle3", "--model", "no-such-model.gguf", "--own-prompts", own, *files]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(("error: there is 1 prompt", "error: prompt"))
    assert not (tmp_path / "out").exists()


IMPOSSIBLE = {
    "layers": ("draft_model", {"num_layers": 9}, "num_layers is 9; allowed: 1 to"),
    "vocabulary": ("medusa", {"draft_vocab_size": 1}, "draft_vocab_size is 1; allowed: 2 to"),
}


@pytest.mark.parametrize(("method", "options", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_does_not_fit_the_model_is_refused_before_any_answer(
    llm, questions, tmp_path, monkeypatch, method, options, message
):
    monkeypatch.setattr("foreword.train.loop.session.collect_answers", None)
    checkpoint = type(llm.model.checkpoint)
    monkeypatch.setattr(checkpoint, "eos_token_ids", (1, 2))
    with pytest.raises(ConfigError, match=message):
        train(method, llm, questions, tmp_path / "out", replace(SETTINGS, **options), Quiet())


def test_few_tokens_are_answered_on_until_both_sides_have_an_answer(llm, questions, tmp_path):
    options = DistillOptions(num_tokens=1, max_new_tokens=12, held_out=0.4)
    answers = self_distill(llm, questions, AnswerStore(tmp_path), options, nothing)
    assert any(a.split == "train" for a in answers)
    assert any(a.split == "held_out" and a.temperature == 0 for a in answers)


def test_features_stop_at_the_deadline_and_go_on_later(llm, data, tmp_path, monkeypatch):
    _, answers, _ = data
    monkeypatch.setattr("foreword.train.data.extract._ROWS", 1)  # one answer a pass
    store = FeatureStore(tmp_path, (1, 2), llm.model.decoder.spec.hidden_size)
    store.begin({"model_fingerprint": llm.model.checkpoint.fingerprint, "dtype": llm.model.choice.dtype})
    extract_features(llm.model.decoder, answers, store, nothing, deadline_s=0.0)
    entries = store.entries
    assert 2 <= len(entries) < len(answers)
    assert {entry.split for entry in entries} == {"train", "held_out"}
    monkeypatch.undo()
    extract_features(llm.model.decoder, answers, store, nothing)
    assert len(store.entries) == len(answers)


class Clock:
    """Time that passes only where something is said to take it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class SlowMethod:
    """Costs time and learns nothing: `step_s` a batch, `eval_s` a batch of a measurement."""

    inner = ()

    def __init__(self, clock: Clock, step_s: float, eval_s: float) -> None:
        self.clock, self.step_s, self.eval_s = clock, step_s, eval_s
        self.module, self.num_evals = torch.nn.Linear(1, 1), 0

    def loss(self, batch):
        self.clock.now_s += self.step_s
        return Losses(self.module(torch.zeros(1)).sum(), [0], [1])

    def evaluate(self, batches):
        for _ in batches:
            self.clock.now_s += self.eval_s
        self.num_evals += 1
        return Measures([0.0], 1.0)


@pytest.mark.parametrize("eval_every_s", [1e9, 4.0])
@pytest.mark.parametrize(("step_s", "eval_s"), [(0.5, 0.2), (0.5, 9.0), (30.0, 0.2)])
def test_a_run_ends_within_its_budget_measured(data, tmp_path, eval_every_s, step_s, eval_s):
    """With room kept for the last measurement; what takes longer than all of it overruns by one step or batch at most."""
    clock = Clock()
    method = SlowMethod(clock, step_s, eval_s)
    options = LoopOptions(time_budget_s=15.0, reserve_s=6.0, eval_every_s=eval_every_s, batch_tokens=48)
    run = Trainer(method, data[2], options, tmp_path, {}, lambda s: None, lambda m, p: None, clock=clock)
    progress = run.run()
    took_s = clock.now_s - 1000.0
    assert progress.step >= 1
    assert method.num_evals >= 1
    assert took_s <= 15.0 + (step_s if step_s > 15 else 0) + (eval_s if eval_s > 6 or step_s > 15 else 0)
    assert step_s > 15 or took_s > 8.0, "the time is used"


@pytest.mark.parametrize(("method", "budget_s"), [("medusa", 12.0), ("medusa", 30.0), ("ngram_lm", 12.0)])
def test_the_time_budget_of_a_whole_run_is_a_bound(llm, questions, tmp_path, monkeypatch, method, budget_s):
    """Every pass of the model takes 0.2 s, every step 1 s: answers, features, training and measuring end in time."""
    clock, forward, step = Clock(), type(llm.model.decoder).forward, Trainer._step

    def slow_pass(*arguments, **options):
        clock.now_s += 0.2
        return forward(*arguments, **options)

    def slow_step(self):
        clock.now_s += 1.0
        return step(self)

    monkeypatch.setattr(type(llm.model.decoder), "forward", slow_pass)
    monkeypatch.setattr(Trainer, "_step", slow_step)
    settings = replace(
        SETTINGS, time_budget_s=budget_s, num_tokens=10**6, max_new_tokens=4, max_steps=None, num_heads=1
    )
    progress = train(method, llm, questions, tmp_path, settings, Quiet(), clock=clock)
    assert clock.now_s - 1000.0 <= 1.03 * budget_s + 1.0
    assert method == "ngram_lm" or progress.step >= 1
    assert (tmp_path / "config.json").is_file()


def test_past_its_time_the_model_is_asked_only_for_what_is_still_missing(llm, questions, tmp_path):
    """One question in fifty is held out: the time is over before its turn, and it is asked next."""
    clock = Clock()
    many = [replace(questions[0], id=f"q/{i}") for i in range(50)]
    options = DistillOptions(num_tokens=10**6, max_new_tokens=3, held_out=0.0)
    answers = self_distill(llm, many, AnswerStore(tmp_path), options, nothing, deadline_s=clock.now_s, clock=clock)
    assert is_usable(answers)
    assert len(answers) <= 4
    again = self_distill(llm, many, AnswerStore(tmp_path), options, nothing, deadline_s=clock.now_s, clock=clock)
    assert again == answers


def test_an_answer_says_whether_the_drafter_pays(llm, data, tmp_path):
    from foreword.cli.render.train_report import speeds_text

    assert "0.80 times as fast" in speeds_text(Speeds(100.0, 80.0, 4), "eagle3=x")
    assert "it is not faster here yet" in speeds_text(Speeds(100.0, 80.0, 4), "eagle3=x")
    assert speeds_text(Speeds(100.0, 130.0, 4), "eagle3=x").endswith(
        "without 100; 4 prompts, greedy, one at a time): it is faster"
    )
    for count, words in ((1, "without 100; 1 prompt, greedy)"), (3, "3 prompts, greedy, one at a time)")):
        text = speeds_text(Speeds(100.0, 130.0, count), "eagle3=x")
        assert f"{words}: too few held-out prompts to tell ({count}; 4 are needed)" in text
        assert "pay" not in text
    prompts = live_prompts(data[1])
    found = measure_speeds(llm.model, "ngram", tmp_path, prompts, 8, 60.0)
    assert found is None, "a drafter that cannot be served is none to time"
    found = measure_speeds(llm.model, "synthetic", Path("0.7"), prompts, 8, 0.0)
    assert found is not None
    assert (found.num_prompts, found.ratio > 0) == (1, True)


@pytest.mark.parametrize("option", ["--out", "--data"])
def test_a_folder_that_cannot_be_made_is_found_out_before_anything_is_done(option, tmp_path, capsys):
    from foreword.cli.main import main

    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 12)
    folder = prompts / "new" / "folder"  # below a file
    options = {"--out": str(tmp_path / "new" / "out"), option: str(folder)}
    command = ["train", "eagle3", "--model", "no-such-model.gguf", "--prompts", str(prompts)]
    assert main([*command, *[part for pair in options.items() for part in pair]]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {option} is {folder}, which cannot be made or written (Not a directory)")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [prompts], "nothing of the try stays"


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path, capsys, wide_split, monkeypatch):
    from foreword.cli.main import main
    from foreword.train.loop.training_loop import Trainer

    def interrupt(_):
        raise KeyboardInterrupt

    model, prompts, out = write_tiny_chat(tmp_path), tmp_path / "p.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps({"id": f"m/{i}", "turns": [f"word {i}"]}) + "\n" for i in range(12)))
    command = ["train", "medusa", "--model", str(model), "--prompts", str(prompts), "--out", str(out)]
    command += ["--time-budget", "20s", "--num-tokens", "60", "--max-new-tokens", "8", "--draft-vocab-size", "50"]
    monkeypatch.setattr(Trainer, "run", interrupt)
    assert main([*command, "--runtime", "torch"]) == 130
    err = capsys.readouterr().err
    assert err.endswith(
        f"answers so far are kept in {out / 'data'}; the same command resumes from there\ninterrupted\n"
    )
    (out / "resume" / "checkpoint.pt").write_bytes(b"")
    assert f"and the training in {out}, up to its last checkpoint" in kept_text(out, None)
    assert kept_text(tmp_path, None) == "there is no answer to keep yet; the same command starts again"


def test_the_time_left_is_never_more_than_the_phase_may_take(capsys):
    now = [100.0]
    reporter = LineReporter(lambda: now[0])
    reporter.phase("answers", 24.0)
    reporter.data(0, 1_000_000)
    capsys.readouterr()
    lines = []
    for now[0], done in ((121.0, 100), (142.0, 200)):
        reporter.data(done, 1_000_000)
        lines.append(capsys.readouterr().err)
    assert lines[0] == "  100 of 1,000,000 tokens, 5 tok/s, 0:00:03 left\n"
    assert lines[1].endswith("0:00:00 left\n"), "over its time"
    reporter.phase("features")
    reporter.data(0, 1000)
    now[0] = 172.0
    reporter.data(100, 1000)
    assert capsys.readouterr().err.endswith("0:04:30 left\n"), "nothing to hold it to"


def test_durations_and_names():
    assert parse_duration("--x", "1h30m") == 5400
    assert parse_duration("--x", "90s") == 90
    assert (*METHODS, *COUNTED) == METHOD_NAMES
