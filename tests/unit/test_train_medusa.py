"""Medusa in training: which token each head learns, loss, calibration, overfit, files that the drafter reads the same."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from foreword.draft.heads.medusa_files import open_heads
from foreword.draft.heads.medusa_network import load_heads
from foreword.draft.heads.medusa_tree import cut
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.train.methods.medusa import NUM_RANKS, Medusa, MedusaOptions
from foreword.train.out.calibrate import calibrate
from tests.unit.test_train_eagle3 import SPEC, VOCAB, batch, target  # noqa: F401  a fixture among them


def method(target, seed=0, noise=0.0, **options) -> Medusa:  # noqa: F811
    made = Medusa.build(target, VOCAB, options=MedusaOptions(**options), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return made


def slow_logits(trained: Medusa, hidden, head):
    """One head on some hidden states, written out."""
    x = hidden.float()
    for layer in trained.module.blocks[head].layers:
        gate = x @ layer.weight.T + layer.bias
        x = x + gate * torch.sigmoid(gate)
    return x @ trained.module.lm_heads[0 if trained.options.shares_output else head].weight.T


def answer_places(data, lengths):
    """For each answer: its row, the column of its prompt's last token and how many tokens it has."""
    return [(i, data.num_columns - 1 - answer, answer) for i, (_, answer) in enumerate(lengths)]


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("soft", [0.0, 0.5, 1.0])
def test_head_k_learns_the_token_k_plus_two_places_on(target, shares, soft):  # noqa: F811
    """The loss, its weights and its masks against sums written out, place by place."""
    lengths = ((3, 6), (2, 9))
    data = batch(target, lengths)
    choices = data.choices.clone()
    choices[1, 4] = 0  # a choice outside the draft vocabulary: nothing is learnt there
    data = dataclasses.replace(data, choices=choices)
    trained = method(target, noise=0.2, num_heads=3, num_layers=2, shares_output=shares, soft=soft)
    first, sums, counts, rights = data.num_columns - data.answer_columns, torch.zeros(3), [0] * 3, [0] * 3
    for head in range(3):
        losses = []
        for i, start, answer in answer_places(data, lengths):
            # From the state of the prompt's last token on; the last token that is predicted is the answer's last.
            for column in range(start, start + answer - 1 - head):
                counts[head] += 1
                speaker = column + 1 + head - first  # its distribution is that of the token head + 2 places on
                wanted = int(data.choices[i, speaker])
                if wanted == 0:
                    continue
                logits = slow_logits(trained, data.hidden[i, column - first], head)
                row = int((wanted == VOCAB).nonzero())
                goal = soft * torch.softmax(data.hidden[i, speaker].float() @ target.head[VOCAB].T, -1)
                goal[row] += 1 - soft
                losses.append(F.cross_entropy(logits[None], goal[None]))
                rights[head] += int(logits.argmax()) == row
        sums[head] = torch.stack(losses).mean() * 0.8**head
    found = trained.loss(data)
    torch.testing.assert_close(found.loss, sums.sum(), rtol=1e-4, atol=1e-4)
    assert (found.num_places, found.num_right) == (counts, rights)


def test_fresh_heads_say_what_the_target_says(target):  # noqa: F811
    trained = method(target)
    hidden = torch.randn(4, SPEC.hidden_size)
    for head in range(4):
        logits = trained.module.states(hidden, head) @ trained.module.output(head).T
        torch.testing.assert_close(logits, hidden @ target.head[VOCAB].T)


@pytest.mark.parametrize("shares", [True, False])
def test_one_batch_overfits_to_acceptance_one(target, shares):  # noqa: F811
    trained, data = method(target, num_heads=3, shares_output=shares, soft=0.0), batch(target, greedy=False)
    optimiser = torch.optim.AdamW(trained.module.parameters(), lr=2e-2)
    before = trained.evaluate([(data, ["a", "b"])])
    for _ in range(120):
        optimiser.zero_grad()
        losses = trained.loss(data)
        losses.loss.backward()
        optimiser.step()
    measures = trained.evaluate([(data, ["a", "b"])])
    assert before.accept_by_depth[0] < 0.5
    assert measures.accept_by_depth == [1.0, 1.0, 1.0]
    assert losses.accuracy == [1.0, 1.0, 1.0]
    assert measures.first_depth_by_category == {"a": 1.0, "b": 1.0}
    assert [row[0] for row in trained._calibration.accuracies] == [1.0, 1.0, 1.0]
    assert list(trained._calibration.tree)[:3] == [(0,), (0, 0), (0, 0, 0)]


@pytest.mark.parametrize("shares", [True, False])
def test_the_drafter_reads_what_was_trained(target, shares, tmp_path):  # noqa: F811
    """Same hidden states, same logits, same tree; the ids of the rows are the draft vocabulary's."""
    trained = method(target, noise=0.2, num_heads=3, num_layers=2, shares_output=shares)
    trained.evaluate([(batch(target), ["a", "b"])])
    trained.save(tmp_path, {"method": "medusa", "steps": 3})
    files = open_heads(tmp_path)
    assert (files.layout, files.notes) == ("vllm", ())
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["num_heads"], config["num_hidden_layers"]) == ("medusa", 3, 2)
    assert (config["vocab_size"], config["truncated_vocab_size"]) == (SPEC.vocab_size, len(VOCAB))
    assert (config["original_lm_head"], config["medusa_fc_bias"]) == (shares, True)
    network = load_heads(files, SPEC, None, TorchRuntime(dtype="float32"))
    assert network.vocab.ids.tolist() == VOCAB.tolist()
    hidden = torch.randn(5, SPEC.hidden_size)
    served = network.heads(hidden, 3)
    for head in range(3):
        torch.testing.assert_close(served[:, head], slow_logits(trained, hidden, head), rtol=3e-2, atol=3e-2)
    assert dict(network.paths) == pytest.approx(trained._calibration.tree, abs=1e-5)
    assert cut(network.paths, 5, 3, None).shape.num_nodes == 5
    assert config["foreword"]["steps"] == 3


def test_ranks_are_places_of_the_answers_own_tokens(target):  # noqa: F811
    lengths = ((3, 6), (2, 9))
    data = batch(target, lengths)
    token_ids = data.token_ids.clone()
    token_ids[0, -2] = 0  # an answer's token that is not drafted is never found
    data = dataclasses.replace(data, token_ids=token_ids)
    trained = method(target, noise=0.2, num_heads=2)
    ranks, first = trained._ranks(data), data.num_columns - data.answer_columns
    for i, start, _ in answer_places(data, lengths):
        for column in range(start, data.num_columns - 1):
            for head in range(2):
                ahead, rank = column + 2 + head, NUM_RANKS
                if ahead < data.num_columns and int(data.token_ids[i, ahead]) in VOCAB:
                    logits = slow_logits(trained, data.hidden[i, column - first], head)
                    order = VOCAB[logits.argsort(descending=True)].tolist()
                    rank = min(NUM_RANKS, order.index(int(data.token_ids[i, ahead])))
                assert int(ranks[i, column - first, head]) == rank


def test_calibration_on_known_numbers():
    """10,000 places: ranks (0, 0) at half of them, (0, 1) at a tenth, (1, 0) at a fifth, the rest wrong."""
    rows = [(0, 0)] * 5000 + [(0, 1)] * 1000 + [(1, 0)] * 2000 + [(3, 3)] * 2000
    found = calibrate(np.array(rows), 3, 4)
    assert found.accuracies == [[0.6, 0.2, 0.0], [0.7, 0.1, 0.0]]
    assert found.num_places == 10000
    # The chance along the path, not the product 0.6 * 0.7: the heads are right at the same places.
    assert list(found.tree) == [(0,), (0, 0), (1,), (1, 0)]
    assert list(found.tree.values()) == pytest.approx([0.6, 0.5, 0.2, 0.2], abs=1e-3)


def test_where_few_places_were_seen_the_heads_accuracies_fill_in():
    found = calibrate(np.array([(0, 0), (1, 2), (0, 2), (0, 2)]), 2, 9)
    accuracies = [[0.75, 0.25], [0.25, 0.0]]
    assert found.accuracies == accuracies
    assert found.tree[(0, 0)] == pytest.approx(found.tree[(0,)] * (1 + 10 * 0.25) / (3 + 10))
    assert found.tree[(1, 0)] == pytest.approx(found.tree[(1,)] * (0 + 10 * 0.25) / (1 + 10))
    assert (1, 1) not in found.tree
    assert calibrate(np.zeros((0, 2), dtype=np.int64), 2, 9).tree == {}
