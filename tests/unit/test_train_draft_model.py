"""A distilled draft model: what it learns, what is written, what decoding does with it."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from foreword.bench.drafter_facts import drafter_facts, drafter_kind
from foreword.config import ModelSpec
from foreword.draft.model.trained_model import TrainedModelFiles, is_trained_model, load_trained_model
from foreword.engine.llm import LLM
from foreword.errors import CheckpointError, ConfigError
from foreword.runtime.base import Need
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import load_model
from foreword.train.data.batches import collate
from foreword.train.loop.losses import head_loss
from foreword.train.loop.session import target_tables, train
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions
from foreword.train.methods import draft_model
from foreword.train.methods.draft_model_net import DraftModelNet
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.unit.test_train_run import (
    SETTINGS,
    Quiet,
    weights,
)

ONE_LAYER = TrainSettings(draft_vocab_size=64, num_layers=1, dtype=torch.float32, soft_targets=0.0)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_untrained_and_with_all_layers_it_is_the_target(family):
    """Its network is that of the runtimes, in every family: started from all layers it says what the target says."""
    from foreword.runtime.torch_runtime import TorchRuntime

    spec: ModelSpec = tiny_spec(family, num_layers=3)
    source = TinyWeights(spec)
    net = DraftModelNet(spec, 3)
    net.initialise(source)
    decoder = TorchRuntime(dtype="float32").decoder(spec, source)
    texts = [[5, 17, 3, 42, 8, 1, 9], [1, 2, 3]]
    token_ids = torch.zeros(2, 7, dtype=torch.int64)
    for i, text in enumerate(texts):
        token_ids[i, -len(text) :] = torch.tensor(text)
    starts = torch.tensor([0, 4])
    with torch.no_grad():
        states = net(source.tensor("embed.weight").float()[token_ids], 3, starts)
    for i, text in enumerate(texts):
        cache = decoder.new_cache()
        out = decoder.forward(pack([DraftTree.chain(text)], [0], [cache.open(7)]), cache, Need(hidden=True))
        torch.testing.assert_close(states[i], out.hidden[-3:], rtol=1e-3, atol=1e-4)


def taught(llm, data, settings=ONE_LAYER, resume=None, steps=60):
    """One that knows the greedy answers of the data, as its file would have it; their batch and entries."""
    store = data[2]
    trained = draft_model.make(target_tables(llm), store, settings, resume)
    optimiser = torch.optim.AdamW(trained.module.parameters(), lr=3e-3)
    greedy = [e for e in store.entries if e.temperature == 0.0 and e.answer_len > 2]
    batch = collate(store, greedy, 512)
    for _ in range(steps):
        optimiser.zero_grad()
        losses = trained.loss(batch)
        losses.loss.backward()
        optimiser.step()
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return trained, batch, greedy, losses


@pytest.fixture(scope="module")
def lesson(llm, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft-model")
    trained, batch, greedy, losses = taught(llm, data, resume=folder)
    facts = {"method": "draft_model", "num_speculative_tokens": 4, "target_fingerprint": "f" * 64}
    trained.save(folder, facts)
    return folder, trained, batch, greedy, losses


def test_one_batch_overfits(lesson):
    _, trained, batch, greedy, losses = lesson
    assert losses.accuracy[0] > 0.97
    measures = trained.evaluate([(batch, ["all"] * len(greedy))])
    assert min(measures.accept_by_depth) > 0.9
    assert measures.first_depth_by_category["all"] > 0.9


def test_the_first_draft_has_the_trainers_logits(llm, lesson):
    """Same text, same logits: the trainer's network and the decoder that the file becomes."""
    folder, trained, batch, _, _ = lesson
    files = TrainedModelFiles(folder)
    made = load_trained_model(files, llm.model.checkpoint.spec, llm.model.checkpoint, llm.model.runtime)
    assert made.vocab.ids.tolist() == trained._vocab_ids.tolist()
    row, start = 0, int(batch.starts[0])
    text = batch.token_ids[row, start:-1].tolist()
    cache = made.decoder.new_cache()
    root = len(text) - 1
    out = made.decoder.forward(pack([DraftTree.chain(text)], [0], [cache.open(len(text))]), cache, Need(logits=[root]))
    with torch.no_grad():
        wanted = trained._states(batch)[row, -1] @ trained._head.T
    torch.testing.assert_close(out.logits[0], wanted, rtol=1e-3, atol=1e-3)


def live_tokens_per_step(model, folder, prompts, **options):
    """With a drafter; the words are checked against plain decoding by the way."""
    params = SamplingParams(max_tokens=12)
    plain = LLM(model, "none").generate(prompts, params)
    drafting = LLM(model, {"method": "draft_model", "model": str(folder), **options})
    results = drafting.generate(prompts, params)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    return sum(r.stats.new_tokens - 1 for r in results) / sum(r.stats.num_steps for r in results), drafting


def prompts_of(data, greedy):
    _, answers, store = data
    return [list(a.token_ids[: a.prompt_len]) for a, e in zip(answers, store.entries, strict=True) if e in greedy]


def test_the_decoder_drafts_what_the_trainer_measured(llm, data, lesson):
    folder, trained, batch, greedy, _ = lesson
    live, drafting = live_tokens_per_step(llm.model, folder, prompts_of(data, greedy))
    assert drafting.config.num_speculative_tokens == 4  # as its card says
    assert trained.evaluate([(batch, [None] * len(greedy))]).tokens_per_step == pytest.approx(live)
    assert live > 2


def test_on_the_native_runtime_the_words_are_those_of_plain_decoding(llm, data, lesson):
    if problem := native_problem():
        pytest.skip(problem)
    folder, _, _, greedy, _ = lesson
    cache_dir = folder / "cache"
    model = load_model(llm.model.checkpoint.path, runtime="native", dtype="int8", threads=1, cache_dir=cache_dir)
    live, _ = live_tokens_per_step(model, folder, prompts_of(data, greedy)[:6])
    assert live > 1.2


def test_the_final_norm_begins_where_the_loss_is_least(llm, data, tmp_path):
    """An untrained one of a norm that is ten times too large finds its way back; no factor nearby is better."""
    trained = draft_model.make(target_tables(llm), data[2], ONE_LAYER, tmp_path)
    entries = [e for e in data[2].entries if e.split == "train"][:4]
    batch, norm = collate(data[2], entries, 512), trained.module.norm.weight

    def loss():
        with torch.no_grad():
            return float(trained.loss(batch).loss)

    with torch.no_grad():
        norm.mul_(10)
        before = loss()
        factor = trained.calibrate(batch)
        found = loss()
        assert factor < 0.5
        assert found < before
        for nearby in (0.8, 1.25):
            norm.mul_(nearby)
            assert loss() >= found - 1e-6 or factor == draft_model._NORM_SCALES[-1]
            norm.div_(nearby)


def test_what_is_the_targets_is_left_out(lesson, llm):
    folder, trained, *_ = lesson
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    assert {name for name in tensors if not name.startswith("model.layers.0.")} == {"model.norm.weight", "d2t"}
    assert len(tensors) == 11
    ids = torch.arange(64) + tensors["d2t"]
    assert torch.equal(ids, trained._vocab_ids)
    assert (config["num_hidden_layers"], config["draft_vocab_size"]) == (1, 64)
    assert config["vocab_size"] == llm.model.checkpoint.spec.vocab_size
    assert is_trained_model(folder)
    assert not is_trained_model(folder / "nowhere")


def test_a_folder_made_for_another_model_is_refused(lesson, llm, tmp_path):
    folder = lesson[0]
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")

    def refusal(config=config, tensors=tensors):
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError) as caught:
            LLM(llm.model, f"draft_model={tmp_path}")
        return str(caught.value)

    assert "vocabulary of 999" in refusal(config | {"vocab_size": 999})
    assert "no tensor model.norm.weight" in refusal(
        tensors={n: t for n, t in tensors.items() if n != "model.norm.weight"}
    )
    assert "d2t names 64 tokens" in refusal(tensors=tensors | {"d2t": tensors["d2t"] + 10_000})
    assert "has shape" in refusal(tensors=tensors | {"model.norm.weight": torch.ones(3, dtype=torch.bfloat16)})


def test_the_trained_one_of_a_model_is_found_without_a_path(llm, lesson, tmp_path, monkeypatch):
    folder = lesson[0]
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="foreword train draft_model"):
        LLM(llm.model, "draft_model")
    own = tmp_path / "checkpoints" / "mine"
    own.mkdir(parents=True)
    (own / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["foreword"]["target_fingerprint"] = llm.model.checkpoint.fingerprint
    (own / "config.json").write_text(json.dumps(config))
    assert LLM(llm.model, "draft_model").generate([[5, 6, 7]], SamplingParams(max_tokens=3))


def test_a_frozen_head_has_no_gradient_and_the_same_loss():
    generator = torch.Generator().manual_seed(0)
    x, head = (torch.randn(n, 8, generator=generator) for n in (30, 12))
    targets = torch.softmax(torch.randn(30, 12, generator=generator), -1)
    rest = (targets, torch.arange(30), torch.ones(30), torch.randint(12, (30,), generator=generator))
    grads = []
    for trains_head in (True, False):
        mine, matrix = x.clone().requires_grad_(), head.clone().requires_grad_(trains_head)
        loss, _ = head_loss(mine, matrix, *rest)
        loss.backward()
        grads.append((loss.detach(), mine.grad))
        assert (matrix.grad is not None) == trains_head
    torch.testing.assert_close(grads[0], grads[1])


def test_a_run_that_was_killed_ends_as_one_that_was_not(llm, questions, data, tmp_path, wide_split, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings, reporter = replace(SETTINGS, max_steps=4, num_layers=1), Quiet()
    assert train("draft_model", llm, questions, whole, settings, reporter, data=data[0]).step == 4
    card = json.loads((whole / "config.json").read_text())["foreword"]
    assert (card["method"], card["num_layers"], card["num_speculative_tokens"]) == ("draft_model", 1, 4)
    options = LoopOptions
    monkeypatch.setattr("foreword.train.loop.session.LoopOptions", lambda **o: options(**o, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        train("draft_model", llm, questions, killed, settings, Quiet(stop_at=2), data=data[0])
    train("draft_model", llm, questions, killed, settings, Quiet(), data=data[0])
    first, second = weights(whole), weights(killed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ConfigError, match="num_layers is 2; allowed: 1 to 1"):
        train("draft_model", llm, questions, tmp_path / "more", replace(settings, num_layers=2), Quiet(), data=data[0])


def test_inspect_says_what_it_is(lesson):
    folder = str(lesson[0])
    assert drafter_kind(folder) == "draft_model"
    facts = drafter_facts("draft_model", folder)
    assert (facts["num_layers"], facts["draft_vocab_size"]) == (1, 64)
    assert facts["borrows"] == ["embed.weight", "head.weight"]


@pytest.mark.parametrize("width", [1, 3])
def test_sampled_words_are_those_of_plain_decoding(llm, data, lesson, width):
    """A part of the vocabulary drafts: what is drawn is mapped to the target's ids before it meets the noise."""
    folder, _, _, greedy, _ = lesson
    prompts = prompts_of(data, greedy)[:4]
    params = SamplingParams(max_tokens=12, temperature=0.9, top_k=50, seed=3)
    config = {"method": "draft_model", "model": str(folder), "draft_tree_width": width, "num_speculative_tokens": 6}
    plain = LLM(llm.model, "none").generate(prompts, params)
    results = LLM(llm.model, config).generate(prompts, params)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    assert sum(r.stats.accepted_tokens for r in results) > 0
