"""EAGLE-3 in training: attention of the training-time test, loss, masks, overfit, files."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from foreword.config import ModelSpec
from foreword.train.data.batches import Batch, places
from foreword.train.loop.losses import head_loss, soft_targets
from foreword.train.methods.eagle3 import Eagle3, Eagle3Options
from foreword.train.methods.eagle3_net import Eagle3Net, Eagle3Spec, Seen, attend
from foreword.train.methods.method import TargetTables

SPEC = ModelSpec(
    family="llama", hidden_size=16, intermediate_size=24, num_layers=8, num_heads=4, num_kv_heads=2, head_dim=4,
    vocab_size=40, context_len=128,
)  # fmt: skip
VOCAB = torch.tensor([1, 2, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37])


@pytest.fixture
def target() -> TargetTables:
    generator = torch.Generator().manual_seed(5)
    embedding, head = (torch.randn(SPEC.vocab_size, SPEC.hidden_size, generator=generator) for _ in range(2))
    return TargetTables(SPEC, embedding, head, (1,), "f" * 64, "tiny")


def method(target: TargetTables, unroll: int = 3, seed: int = 0) -> Eagle3:
    scale = torch.linspace(0.5, 3.0, 3 * SPEC.hidden_size)
    options = Eagle3Options(unroll=unroll, eval_depth=4)
    return Eagle3.build(target, (2, 4, 5), VOCAB, scale, options=options, dtype=torch.float32, seed=seed)


def batch(target: TargetTables, lengths=((3, 6), (2, 9)), seed: int = 0, greedy: bool = True) -> Batch:
    """Answers of the draft vocabulary; `lengths` are of prompt and answer. The target's choice is the answer's token."""
    generator = torch.Generator().manual_seed(seed)
    columns, width = max(p + a for p, a in lengths), max(a for _, a in lengths) + 1
    token_ids = torch.zeros(len(lengths), columns, dtype=torch.int64)
    taps = torch.zeros(len(lengths), columns, 3 * SPEC.hidden_size, dtype=torch.bfloat16)
    hidden = torch.zeros(len(lengths), width, SPEC.hidden_size, dtype=torch.bfloat16)
    choices = torch.full((len(lengths), width), -1, dtype=torch.int64)
    for i, (prompt, answer) in enumerate(lengths):
        length = prompt + answer
        token_ids[i, -length:] = VOCAB[torch.randint(len(VOCAB), (length,), generator=generator)]
        taps[i, -length:] = torch.randn(length, 3 * SPEC.hidden_size, generator=generator)
        rows = torch.randn(answer + 1, SPEC.hidden_size, generator=generator)
        if greedy:  # hidden states whose top-1 token is the next of the answer
            said = target.head[token_ids[i, -answer:]]
            rows[:-1] = 6 * said / said.norm(dim=-1, keepdim=True)
        hidden[i, -answer - 1 :] = rows
        choices[i, -answer - 1 : -1] = token_ids[i, -answer:]
        choices[i, -1] = 1
    lens = torch.tensor([p + a for p, a in lengths])
    return Batch(
        token_ids, taps, hidden, choices, columns - lens,
        columns - 1 - torch.tensor([a for _, a in lengths]), torch.ones(len(lengths), dtype=torch.bool),
    )  # fmt: skip


def slow_logits(net: Eagle3Net, embedding, tokens, taps, pair: int, depth: int) -> torch.Tensor:
    """What drafting computes for one pair, written out: true pairs 0..pair, then its own guesses one by one."""
    spec, layer = net.spec.target, net.midlayer

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + spec.norm_eps).sqrt() * weight

    def turn(heads, position):
        half = spec.head_dim // 2
        angles = position * spec.rope.theta ** (-torch.arange(half) / half)
        a, b = heads[:, :half], heads[:, half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)

    states = list(F.linear(taps.float(), net.fc.weight / net.feature_scale)[: pair + 1])
    inputs, keys, values = [], [], []
    for row in range(pair + 1 + depth):
        state = states[row]
        e = norm(embedding[tokens[row + 1]], layer.input_layernorm.weight)
        inputs.append(torch.cat((e, norm(state, layer.hidden_norm.weight))))
        keys.append(turn(layer.self_attn.k_proj(inputs[row]).view(spec.num_kv_heads, -1), row))
        values.append(layer.self_attn.v_proj(inputs[row]).view(spec.num_kv_heads, -1))
        if row < pair:
            continue
        queries = turn(layer.self_attn.q_proj(inputs[row]).view(spec.num_heads, -1), row)
        heads = []
        for h in range(spec.num_heads):
            kv = h // spec.group_size
            scores = torch.stack([queries[h] @ key[kv] for key in keys]) / spec.head_dim**0.5
            heads.append(torch.softmax(scores, 0) @ torch.stack([value[kv] for value in values]))
        x = state + layer.self_attn.o_proj(torch.cat(heads))
        y = norm(x, layer.post_attention_layernorm.weight)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
        states.append(x)
    return net.lm_head(norm(states[-1], net.norm.weight))


def test_unrolled_steps_are_what_drafting_computes(target):
    """Every pair and depth of the training-time test against drafting written out, padding and grouped heads included."""
    trained, data = method(target, unroll=4), batch(target)
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        first = data.num_columns - data.answer_columns
        for depth, state in enumerate(trained._unroll(data, 4)):
            logits = trained.module.lm_head(trained.module.norm(state))
            for i in range(2):
                start = int(data.starts[i])
                tokens, taps = data.token_ids[i, start:], data.taps[i, start:]
                for column in range(int(data.answer_starts[i]), data.num_columns - 1 - depth):
                    wanted = slow_logits(trained.module, target.embedding, tokens, taps, column - start, depth)
                    torch.testing.assert_close(logits[i, column - first], wanted, rtol=1e-4, atol=1e-4)


def test_attention_masks_equal_a_dense_one():
    """All keys in one list with an explicit mask: causal over step 0, the own column alone of later steps."""
    generator = torch.Generator().manual_seed(0)
    size, heads, kv, answers, columns, dim, later = 2, 4, 2, 5, 8, 4, 2

    def rand(*shape):
        return torch.randn(*shape, generator=generator)

    queries = rand(size, heads, answers, dim)
    seen = Seen(
        rand(size, kv, columns, dim), rand(size, kv, columns, dim),
        [rand(size, kv, answers, dim) for _ in range(later)], [rand(size, kv, answers, dim) for _ in range(later)],
    )  # fmt: skip
    starts = torch.tensor([0, 4])  # the second answer's padding reaches into the answers' columns
    out = attend(queries, seen, starts)
    keys = torch.cat((seen.keys, *seen.own_keys), 2).repeat_interleave(heads // kv, 1)
    values = torch.cat((seen.values, *seen.own_values), 2).repeat_interleave(heads // kv, 1)
    for i in range(size):
        mask = torch.zeros(answers, columns + later * answers, dtype=torch.bool)
        for a in range(answers):
            column = columns - answers + a
            mask[a, [k for k in range(columns) if starts[i] <= k <= column or k == column]] = True
            mask[a, [columns + s * answers + a for s in range(later)]] = True
        wanted = F.scaled_dot_product_attention(queries[i], keys[i], values[i], attn_mask=mask, scale=1.0)
        torch.testing.assert_close(out[i], wanted.transpose(0, 1).flatten(1))


def test_head_loss_equals_cross_entropy_and_its_gradients():
    generator = torch.Generator().manual_seed(0)
    x, head = (torch.randn(n, 8, generator=generator, requires_grad=True) for n in (30, 12))
    targets = torch.softmax(torch.randn(20, 12, generator=generator), -1)
    places = torch.randint(20, (30,), generator=generator)
    weights, wanted = torch.rand(30, generator=generator), torch.randint(12, (30,), generator=generator)
    loss, is_right = head_loss(x, head, targets, places, weights, wanted)
    grads = torch.autograd.grad(3.0 * loss, (x, head))
    logits = x @ head.T
    slow = (F.cross_entropy(logits, targets[places], reduction="none") * weights).sum()
    torch.testing.assert_close(loss, slow)
    for fast, wanted_grad in zip(grads, torch.autograd.grad(3.0 * slow, (x, head)), strict=True):
        torch.testing.assert_close(fast, wanted_grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(is_right, logits.argmax(-1) == wanted)


def test_soft_targets_are_the_target_renormalised(target):
    hidden = torch.randn(5, SPEC.hidden_size, generator=torch.Generator().manual_seed(2))
    whole = torch.softmax(hidden @ target.head.T, -1)[:, VOCAB]
    torch.testing.assert_close(soft_targets(hidden, target.head[VOCAB]), whole / whole.sum(-1, keepdim=True))


def test_places_are_answer_tokens_only(target):
    """Pair t of depth s predicts token t + 2 + s: of the answer, after its first token, and there."""
    data = batch(target, lengths=((3, 6), (2, 9)))
    first = data.num_columns - data.answer_columns
    for depth in range(4):
        is_place, judged = places(data, depth)
        for i, (prompt, answer) in enumerate(((3, 6), (2, 9))):
            start = int(data.starts[i])
            pairs = [c for c in range(first, data.num_columns - 1) if is_place[i, c - first]]
            # Places of the answer's tokens, counted from the sequence's own begin.
            predicted = [c - start + 2 + depth for c in pairs]
            assert predicted == list(range(prompt + 1 + depth, prompt + answer))
            for c in pairs:
                assert int(judged[i, c - first]) == i * data.answer_columns + (c + 1 + depth - first)


def test_choices_outside_the_draft_vocabulary_have_no_loss_but_count_as_wrong(target):
    data = batch(target)
    inside = method(target).loss(data)
    choices = data.choices.clone()
    choices[:, 3] = 0  # no draft token
    outside = method(target).loss(dataclasses.replace(data, choices=choices))
    assert outside.num_places == inside.num_places
    assert all(right <= places - 1 for right, places in zip(outside.num_right, outside.num_places, strict=True))
    assert float(outside.loss.detach()) != float(inside.loss.detach())


def test_one_batch_overfits_to_acceptance_one(target):
    trained, data = method(target), batch(target)
    optimiser = torch.optim.AdamW(trained.module.parameters(), lr=1e-2)
    before = trained.evaluate([(data, ["a", "b"])])
    for _ in range(80):
        optimiser.zero_grad()
        losses = trained.loss(data)
        losses.loss.backward()
        optimiser.step()
    measures = trained.evaluate([(data, ["a", "b"])])
    assert before.accept_by_depth[0] < 0.5
    assert measures.accept_by_depth[:3] == [1.0, 1.0, 1.0]  # as deep as it was unrolled
    assert losses.accuracy == [1.0, 1.0, 1.0]
    assert measures.first_depth_by_category == {"a": 1.0, "b": 1.0}


def test_saved_files_are_the_network(target, tmp_path):
    trained = method(target)
    trained.save(tmp_path, {"unroll": 3})
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    ids = torch.arange(len(VOCAB)) + tensors["d2t"]
    assert torch.equal(ids, VOCAB)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), VOCAB)
    assert config["draft_vocab_size"] == len(VOCAB)
    assert config["vocab_size"] == SPEC.vocab_size
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    taps = torch.randn(4, 3 * SPEC.hidden_size)
    torch.testing.assert_close(  # the scale of the features is inside the file's fc
        taps @ tensors["fc.weight"].float().T, trained.module.fuse(taps), rtol=2e-2, atol=2e-2
    )
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (16, 32)
    assert all(value.dtype == torch.bfloat16 for name, value in tensors.items() if name not in ("d2t", "t2d"))
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("num_layers", "taps"), [(8, (2, 4, 5)), (30, (2, 15, 27)), (28, (2, 14, 25)), (2, (1, 2))])
def test_default_taps(num_layers, taps):
    assert Eagle3Spec.default_taps(num_layers) == taps
