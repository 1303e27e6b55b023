"""Medusa's training run: broken off and gone on with; what it measured is what decoding then does."""

import json
from dataclasses import replace

import pytest
import torch

from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.train.data.batches import collate
from foreword.train.loop.session import target_tables, train
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions
from foreword.train.methods import medusa
from tests.unit.test_train_run import (
    SETTINGS,
    Quiet,
    weights,
)


def test_a_run_that_was_killed_ends_as_one_that_was_not(llm, questions, data, tmp_path, wide_split, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings, reporter = replace(SETTINGS, max_steps=4, head_layers=2), Quiet()
    assert train("medusa", llm, questions, whole, settings, reporter, data=data[0]).step == 4
    card = json.loads((whole / "config.json").read_text())["foreword"]
    assert reporter.num_best == 1
    assert (card["num_heads"], card["head_layers"], card["method"]) == (4, 2, "medusa")
    assert card["choices"][0] == [0]
    assert "unroll" not in card
    options = LoopOptions
    monkeypatch.setattr("foreword.train.loop.session.LoopOptions", lambda **o: options(**o, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        train("medusa", llm, questions, killed, settings, Quiet(stop_at=2), data=data[0])
    train("medusa", llm, questions, killed, settings, Quiet(), data=data[0])
    first, second = weights(whole), weights(killed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ConfigError, match="num_heads 4, now it is 3"):
        train("medusa", llm, questions, killed, replace(settings, num_heads=3), Quiet(), data=data[0])


def test_the_decoder_drafts_what_the_trainer_measured(llm, data, tmp_path):
    """Walking held-out answers offline counts the passes that decoding takes; a tree of the card's takes no more."""
    _, answers, store = data
    settings = TrainSettings(draft_vocab_size=64, num_heads=3, dtype=torch.float32, soft_targets=0.0)
    trained = medusa.make(target_tables(llm), store, settings, tmp_path)
    optimiser = torch.optim.AdamW(trained.module.parameters(), lr=3e-3)
    greedy = [e for e in store.entries if e.temperature == 0.0 and e.answer_len > 2]
    batch = collate(store, greedy, 512)
    for _ in range(60):
        optimiser.zero_grad()
        trained.loss(batch).loss.backward()
        optimiser.step()
    with torch.no_grad():  # as the file has them
        for parameter in trained.module.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    measures = trained.evaluate([(batch, [None] * len(greedy))])
    trained.save(tmp_path, {"num_speculative_tokens": 12})
    prompts = [list(a.token_ids[: a.prompt_len]) for a, e in zip(answers, store.entries, strict=True) if e in greedy]

    def live(**options):
        drafting = LLM(llm.model, {"method": "medusa", "model": str(tmp_path), **options})
        results = drafting.generate(prompts, SamplingParams(max_tokens=12))
        return sum(r.stats.new_tokens - 1 for r in results) / sum(r.stats.num_steps for r in results)

    chain = live(draft_tree_width=1, num_speculative_tokens=3)
    assert measures.tokens_per_step == pytest.approx(chain, rel=0.01)  # the stored states are bfloat16
    assert chain > 1.5
    assert live() >= chain
