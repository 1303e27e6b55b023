"""EAGLE-1 in training: its rollout, its loss, its noise, its files, what decoding does with them."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.heads.eagle_network import load_network
from foreword.engine.llm import LLM
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import load_model
from foreword.train.data.batches import collate
from foreword.train.loop.session import target_tables, train
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions
from foreword.train.methods import eagle
from foreword.train.methods.linear_fit import fit_next_feature
from tests.support.eagle_heads import reference_layer
from tests.unit.test_train_run import (
    SETTINGS,
    Quiet,
    weights,
)


@pytest.fixture(scope="module")
def lesson(llm, data, tmp_path_factory):
    """One that knows the greedy answers of the data, as its file has it; its folder, their batch and entries."""
    folder, store = tmp_path_factory.mktemp("eagle"), data[2]
    settings = TrainSettings(draft_vocab_size=64, dtype=torch.float32)
    made = eagle.make(target_tables(llm), store, settings, folder)
    trained = rebuilt(made, llm, noise=0.0)
    optimiser = torch.optim.AdamW(trained.module.parameters(), lr=3e-3)
    greedy = [e for e in store.entries if e.temperature == 0.0 and e.answer_len > 2]
    batch = collate(store, greedy, 512)
    for _ in range(100):
        optimiser.zero_grad()
        losses = trained.loss(batch)
        losses.loss.backward()
        optimiser.step()
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    trained.save(folder, {"method": "eagle"})
    return folder, trained, batch, greedy, losses


def rebuilt(trained, llm, noise):
    """The same network with this much noise, and tokens that count as much as features."""
    return eagle.Eagle(
        trained.module, target_tables(llm), trained._vocab_ids,
        token_weight=1.0, dtype=torch.float32, seed=0, noise=noise,
    )  # fmt: skip


def test_one_batch_overfits(lesson):
    _, trained, batch, greedy, losses = lesson
    assert losses.accuracy[0] > 0.97
    measures = trained.evaluate([(batch, ["all"] * len(greedy))])
    assert measures.accept_by_depth[0] > 0.97
    assert measures.first_depth_by_category["all"] > 0.97


def test_the_rollout_is_what_drafting_computes(lesson, llm):
    """Each pair and depth against drafting written out: true features, then its own guesses one by one."""
    _, trained, batch, _, _ = lesson
    spec, embedding = llm.model.checkpoint.spec, trained._embedding
    tensors = {name: value.detach() for name, value in trained.module.named_parameters()}
    first = batch.num_columns - batch.answer_columns
    with torch.no_grad():
        steps = list(trained._unroll(batch, 3, batch.features.float()))
        for i in range(2):
            start = int(batch.starts[i])
            tokens = batch.token_ids[i, start:]
            for column in (int(batch.answer_starts[i]), batch.num_columns - 4):
                features = batch.features[i, start : column + 1].float()
                for depth, state in enumerate(steps):
                    embedded = embedding[tokens[1 : len(features) + 1]]
                    inputs = F.linear(torch.cat((embedded, features), -1), tensors["fc.weight"], tensors["fc.bias"])
                    guessed = reference_layer(spec, tensors, inputs, None, {})[-1]
                    torch.testing.assert_close(state[i, column - first], guessed, rtol=1e-3, atol=1e-3, msg=f"{depth}")
                    features = torch.cat((features, guessed[None]))


def test_its_file_is_the_authors_layout_and_names_the_heads_rows(lesson, llm):
    """What is the target's is left out; loaded, the head is the target's rows that d2t names."""
    folder, trained, *_ = lesson
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    layer = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    layer += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm")
    assert set(tensors) == {"fc.weight", "fc.bias", "d2t", "t2d", *(f"layers.0.{name}.weight" for name in layer)}
    assert (config["num_hidden_layers"], config["draft_vocab_size"], config["bias"]) == (1, 64, True)
    model = llm.model
    made = load_network(EagleFiles(folder), False, model.checkpoint.spec, model.checkpoint, model.runtime)
    assert made.reader.decoder.spec.num_logits == 64
    assert made.vocab.ids.tolist() == trained._vocab_ids.tolist()


def live_tokens_per_step(model, method, folder, prompts, **options):
    """With a drafter; the words are checked against plain decoding by the way."""
    params = SamplingParams(max_tokens=12)
    plain = LLM(model, "none").generate(prompts, params)
    results = LLM(model, {"method": method, "model": str(folder), **options}).generate(prompts, params)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    return sum(r.stats.new_tokens - 1 for r in results) / sum(r.stats.num_steps for r in results)


def prompts_of(data, greedy):
    _, answers, store = data
    return [list(a.token_ids[: a.prompt_len]) for a, e in zip(answers, store.entries, strict=True) if e in greedy]


def test_the_decoder_drafts_what_the_trainer_measured(llm, data, lesson):
    folder, trained, batch, greedy, _ = lesson
    depth = eagle.EVAL_DEPTH
    options = {"num_speculative_tokens": depth, "draft_tree_width": 1, "draft_tree_depth": depth}
    live = live_tokens_per_step(llm.model, "eagle2", folder, prompts_of(data, greedy), **options)
    measured = trained.evaluate([(batch, [None] * len(greedy))]).tokens_per_step
    assert measured == pytest.approx(live, rel=0.05)  # a pass of some thirty: the stored features are bfloat16
    assert live > 1.5


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_on_the_native_runtime_the_words_are_those_of_plain_decoding(llm, data, lesson, method):
    if problem := native_problem():
        pytest.skip(problem)
    folder, _, _, greedy, _ = lesson
    cache_dir = folder / "cache"
    model = load_model(llm.model.checkpoint.path, runtime="native", dtype="int8", threads=1, cache_dir=cache_dir)
    assert live_tokens_per_step(model, method, folder, prompts_of(data, greedy)[:6]) > 1.2


def test_noise_is_the_batchs_own_and_within_its_bounds(lesson, llm):
    _, trained, batch, *_ = lesson
    trained = rebuilt(trained, llm, eagle.NOISE)
    first, again = trained._disturbed(batch), trained._disturbed(batch)
    assert torch.equal(first, again)
    noise = (first - batch.features.float()) / trained.module.feature_scale
    assert 0.09 < noise.abs().max() <= eagle.NOISE + 1e-6
    assert abs(float(noise.mean())) < 0.01
    other = dataclasses.replace(batch, token_ids=batch.token_ids.flip(0))
    assert not torch.equal(trained._disturbed(other), first)


def test_the_loss_is_smooth_l1_and_a_share_of_the_cross_entropy(lesson, llm):
    """Written out for one batch, row by row, on disturbed features."""
    _, trained, batch, *_ = lesson
    trained = rebuilt(trained, llm, eagle.NOISE)
    scale, head = trained.module.feature_scale, trained._head
    with torch.no_grad():
        guessed = next(trained._unroll(batch, 1, trained._disturbed(batch)))
        found = trained.loss(batch)
    distances, entropies = [], []
    for i in range(len(batch.token_ids)):
        for column in range(int(batch.answer_starts[i]), batch.num_columns - 2):
            at = column - (batch.num_columns - batch.answer_columns)
            x, true = guessed[i, at], batch.hidden[i, at + 1].float()
            distances.append(F.smooth_l1_loss(x / scale, true / scale))
            if int(batch.choices[i, at + 1]) in trained._vocab_ids:
                entropies.append(F.cross_entropy(head @ x, torch.softmax(head @ true, -1)))
    wanted = torch.stack(distances).mean() + torch.stack(entropies).mean()  # its token_weight is 1
    torch.testing.assert_close(found.loss, wanted, rtol=1e-4, atol=1e-5)
    assert found.num_places == [len(distances)]


def test_a_run_that_was_killed_ends_as_one_that_was_not(llm, questions, data, tmp_path, wide_split, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = replace(SETTINGS, max_steps=4)
    assert train("eagle", llm, questions, whole, settings, Quiet(), data=data[0]).step == 4
    card = json.loads((whole / "config.json").read_text())["foreword"]
    assert (card["method"], card["token_weight"]) == ("eagle", 0.1)
    options = LoopOptions
    monkeypatch.setattr("foreword.train.loop.session.LoopOptions", lambda **o: options(**o, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        train("eagle", llm, questions, killed, settings, Quiet(stop_at=2), data=data[0])
    train("eagle", llm, questions, killed, settings, Quiet(), data=data[0])
    first, second = weights(whole), weights(killed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fc_begins_as_least_squares(llm, data):
    """Against torch's own solution, over all rows written out."""
    store, embedding = data[2], target_tables(llm).embedding
    entries = [e for e in store.entries if e.answer_len > 2]
    weight, bias = fit_next_feature(store, entries, embedding)
    inputs, wanted = [], []
    for entry in entries:
        for token in range(entry.start + entry.prompt_len, entry.start + entry.length):
            rows = store.rows(token - 1, token + 1)
            inputs.append(torch.cat((embedding[int(rows.token_ids[1])].float(), rows.hidden[0].float(), torch.ones(1))))
            wanted.append(rows.hidden[1].float())
    inputs, wanted = torch.stack(inputs), torch.stack(wanted)
    best = inputs @ torch.linalg.lstsq(inputs.double(), wanted.double(), driver="gelsd").solution.float()
    found = inputs[:, :-1] @ weight.T + bias
    error, least, plain = ((x - wanted).square().mean() for x in (found, best, wanted.mean(0)))
    assert least <= error < least + 0.05 * plain


def test_both_names_find_what_was_trained_for_a_model(llm, lesson, tmp_path, monkeypatch):
    folder = lesson[0]
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path))
    own = tmp_path / "checkpoints" / "mine"
    own.mkdir(parents=True)
    config = json.loads((folder / "config.json").read_text())
    config["foreword"] = {"method": "eagle", "target_fingerprint": llm.model.checkpoint.fingerprint}
    (own / "config.json").write_text(json.dumps(config))
    (own / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for method in ("eagle", "eagle2"):
        assert trained_drafter(method, llm.model.checkpoint.fingerprint) == own
        assert LLM(llm.model, method).generate([[5, 6, 7]], SamplingParams(max_tokens=3))
