"""Medusa drafts: what it proposes is what its heads say of the token before the root; no word changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from foreword.draft.base import Plan
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.heads import medusa_guess as guess
from foreword.draft.heads.medusa import MedusaDrafter, MedusaOptions
from foreword.draft.heads.medusa_files import open_heads
from foreword.draft.heads.medusa_network import load_heads
from foreword.draft.heads.medusa_tree import GENERIC_ACCURACIES, cut, generic_paths, paths_of
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.errors import CheckpointError
from foreword.runtime.base import Need
from foreword.runtime.select import native_problem
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.noise import gumbel
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from foreword.verify.base import make_verifier
from tests.support.drafters import Checked
from tests.support.medusa_heads import random_heads, reference_logits, save_heads, vllm_config
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run

TARGET = tiny_spec("llama", num_layers=2)
WEIGHTS = TinyWeights(TARGET)
RUNTIME = TorchRuntime(dtype="float64")
DECODER = RUNTIME.decoder(TARGET, WEIGHTS)
PROMPTS = [[5, 17, 3, 42, 8, 1], [1, 2, 3, 1, 2, 3, 1], [90]]
HALF = torch.arange(1, TARGET.vocab_size, 2)
KINDS = {
    "plain": ({}, None),
    "deep": ({"num_layers": 3, "num_heads": 2}, None),
    "reduced": ({"rows": len(HALF), "bias": False}, HALF.flip(0)),  # a token_map need not ascend
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small only wait for each other
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


def heads_of(kind):
    return random_heads(TARGET, seed=3, **KINDS[kind][0]), KINDS[kind][1]


def drafter_of(folder, heads, token_map=None, card=None, draft_mode=DraftMode.SHARED, **options):
    tensors = heads if token_map is None else {**heads, "token_map": token_map}
    config = vllm_config(TARGET, heads) | ({} if card is None else {"foreword": card})
    files = open_heads(save_heads(folder, config, tensors))
    network = load_heads(files, TARGET, WEIGHTS, RUNTIME)
    return MedusaDrafter(network, MedusaOptions(**options), draft_mode)


def hidden_of(token_ids):
    """The final norm's output at the last of some tokens, from a pass over all of them."""
    cache = DECODER.new_cache()
    batch = pack([DraftTree.chain(token_ids)], [0], [cache.open(len(token_ids))])
    return DECODER.forward(batch, cache, Need(hidden=True)).hidden[-1:]


class ComparedWithHeads(Checked):
    """Each proposal holds, at each depth, the best tokens of that head on the token BEFORE the root."""

    def __init__(self, drafter, heads, token_map, medusa=None):
        super().__init__(drafter)
        self.heads, self.medusa, self.num_compared = heads, medusa or drafter, 0
        self.ids = torch.arange(TARGET.vocab_size) if token_map is None else token_map

    def propose(self, requests, plans):
        trees = super().propose(requests, plans)
        for request, plan, tree in zip(requests, plans, trees, strict=True):
            if tree.num_drafted == 0:
                continue
            hidden = hidden_of(request.token_ids[:-1])
            shape = cut(self.medusa.network.paths, plan.num_nodes, plan.depth, self.medusa._width).shape
            assert tree.num_drafted == shape.num_nodes
            for node, path in enumerate(shape.paths, start=tree.num_known):
                head = len(path) - 1
                scores = reference_logits(self.heads, hidden, head)[0]
                if not request.sampler.warp.is_greedy:
                    noise = gumbel(request.sampler.key(len(request.token_ids) + head), TARGET.vocab_size)
                    scores = scores / request.sampler.warp.temperature + noise[self.ids]
                wanted = int(self.ids[int(scores.argsort(descending=True, stable=True)[path[-1]])])
                assert tree.token_ids[node] == wanted
                assert tree.accept_probs[node] == shape.probs[node - tree.num_known]
                self.num_compared += 1
        return trees


class Rhythm(FixedController):
    """Steps with few, many and no drafts in turn."""

    sizes = (1, 3, 0, 0, 12, 1, 40, 2)
    step = 0

    def plan(self, requests):
        self.step += 1
        self.num_nodes = self.sizes[self.step % len(self.sizes)]
        return super().plan(requests)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}], ids=repr)
@pytest.mark.parametrize("width", [None, 2])
def test_a_proposal_is_what_the_heads_say(kind, options, width, tmp_path, monkeypatch):
    """Whatever the steps before were; one head or one token off, and every comparison fails."""
    monkeypatch.setattr(guess, "_POOL", TARGET.vocab_size)
    heads, token_map = heads_of(kind)
    drafter = drafter_of(tmp_path, heads, token_map, draft_tree_width=width)
    compared = ComparedWithHeads(drafter, heads, token_map)
    engine = make_engine(DECODER, compared, num_nodes=5)
    engine.parts = replace(engine.parts, controller=Rhythm(5, "test", 4))
    run(engine, PROMPTS[:2], [SamplingParams(max_tokens=14, **options)] * 2)
    assert compared.num_compared > 30


@pytest.mark.parametrize(
    "options",
    [{}, {"repetition_penalty": 1.3}, {"temperature": 0.5, "top_k": 2, "seed": 1}],
    ids=repr,
)
def test_tokens_are_those_of_plain_decoding(kind, options, tmp_path):
    params = [SamplingParams(max_tokens=8, **options)] * len(PROMPTS)
    plain = [request.new_ids for request in run(make_engine(DECODER), PROMPTS, params)]
    for batch_size in (1, 3):
        drafter = Checked(drafter_of(tmp_path, *heads_of(kind)))
        requests = run(make_engine(DECODER, drafter, num_nodes=9, batch_size=batch_size), PROMPTS, params)
        assert [request.new_ids for request in requests] == plain
        assert drafter.num_drafted > 30
        assert drafter.drafter._hidden == {}


class Deepest(Checked):
    """Remembers how deep the deepest proposal was."""

    deepest = 0

    def propose(self, requests, plans):
        trees = super().propose(requests, plans)
        self.deepest = max(self.deepest, *(max(tree.depths) - tree.num_known + 1 for tree in trees))
        return trees


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5])
def test_a_generic_tree_is_no_deeper_than_there_are_heads(num_heads, tmp_path):
    """[R77]"""
    drafter = Deepest(drafter_of(tmp_path, random_heads(TARGET, seed=3, num_heads=num_heads)))
    params = [SamplingParams(max_tokens=8)]
    (request,) = run(make_engine(DECODER, drafter, num_nodes=64), PROMPTS[:1], params)
    (plain,) = run(make_engine(DECODER), PROMPTS[:1], params)
    assert request.new_ids == plain.new_ids
    assert drafter.deepest == min(num_heads, max(len(path) for path, _ in drafter.drafter.network.paths))


def taught_heads(text, num_heads=2, num_steps=80):
    """Heads taught one text by gradient descent, outside of the drafter: from the state of token t, token t + 2 + k."""
    heads = random_heads(TARGET, num_heads=num_heads)
    cache = DECODER.new_cache()
    batch = pack([DraftTree.chain(text)], [0], [cache.open(len(text))])
    hidden = DECODER.forward(batch, cache, Need(hidden=True)).hidden.float().clone()
    learned = {name: tensor.requires_grad_() for name, tensor in heads.items()}
    optimiser = torch.optim.Adam(learned.values(), lr=1e-2)
    for _ in range(num_steps):
        optimiser.zero_grad()
        losses = [
            torch.nn.functional.cross_entropy(
                reference_logits(learned, hidden[: -2 - head], head), torch.tensor(text[2 + head :])
            )
            for head in range(num_heads)
        ]
        torch.stack(losses).sum().backward()
        optimiser.step()
    return {name: tensor.detach() for name, tensor in learned.items()}


def test_heads_that_know_the_text_are_right(tmp_path):
    params, prompt = SamplingParams(max_tokens=37), PROMPTS[0]
    (plain,) = run(make_engine(DECODER), [prompt], [params])
    drafter = drafter_of(tmp_path, taught_heads(plain.token_ids), draft_tree_width=1)
    (request,) = run(make_engine(DECODER, drafter, num_nodes=2), [prompt], [params])
    assert request.new_ids == plain.new_ids
    assert request.stats.accepted_tokens >= 0.95 * request.stats.drafted_tokens > 20


def test_in_a_cascade_it_sees_what_others_proposed(tmp_path):
    heads, token_map = heads_of("plain")
    params, prompts = [SamplingParams(max_tokens=16)] * 2, [PROMPTS[1] * 2, PROMPTS[0]]
    plain = [request.new_ids for request in run(make_engine(DECODER), prompts, params)]
    for is_merging in (False, True):
        medusa = drafter_of(tmp_path, heads, token_map)
        own = ComparedWithHeads(medusa, heads, token_map)
        cascade = CascadeDrafter([NgramDrafter(), own], 0.5, is_merging)
        requests = run(make_engine(DECODER, Checked(cascade), num_nodes=4), prompts, params)
        assert [request.new_ids for request in requests] == plain
        assert own.num_compared > 10


def test_a_state_that_is_not_the_one_before_the_root_drafts_nothing(tmp_path):
    drafter = drafter_of(tmp_path, *heads_of("plain"))
    request = Request([1, 2, 3, 4], SamplingParams(max_tokens=4), context_len=64)
    request.kv_len = 3
    plan = [Plan(num_known=1, num_nodes=4, depth=4)]
    assert drafter.propose([request], plan)[0].num_drafted == 0  # never seen
    drafter._hidden[request.request_id] = 2, torch.zeros(TARGET.hidden_size)
    assert drafter.propose([request], plan)[0].num_drafted == 0  # of an older token
    drafter._hidden[request.request_id] = 3, torch.zeros(TARGET.hidden_size)
    assert drafter.propose([request], plan)[0].num_drafted == 4


def test_rejection_gets_the_rows_its_candidates_were_drawn_from(tmp_path):
    """Siblings differ; all nodes of a depth share candidates and row; the row holds no mass outside the vocabulary."""
    drafter = drafter_of(tmp_path, *heads_of("reduced"), draft_mode=DraftMode.OWN)
    seen = []
    inner = drafter.propose
    drafter.propose = lambda r, p: seen.extend(inner(r, p)) or seen[-len(r) :]
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5)
    engine = make_engine(DECODER, Checked(drafter), num_nodes=9, verifier=make_verifier("rejection"))
    (first,) = run(engine, PROMPTS[:1], [params])
    trees = [tree for tree in seen if tree.num_drafted]
    assert len(first.new_ids) == 12
    for tree in trees:
        assert tree.shape_is_fixed
        by_depth = {}
        for node in range(tree.num_known, tree.num_nodes):
            row = tree.draft_probs[node]
            assert float(row.sum()) == pytest.approx(1.0)
            assert float(row[::2].sum()) == 0.0  # even ids are not drafted
            assert float(row[tree.token_ids[node]]) > 0
            by_depth.setdefault(tree.depths[node], []).append(row)
        assert all(row is rows[0] for rows in by_depth.values() for row in rows)
    assert any(not tree.is_chain for tree in trees)


def test_nodes_without_a_candidate_are_left_out_with_all_below(tmp_path):
    card = {"choices": [[0], [1], [0, 0], [1, 0]], "choice_probs": [0.5, 0.3, 0.2, 0.1]}
    drafter = drafter_of(tmp_path, *heads_of("plain"), card=card)
    seen = []
    inner = drafter.propose
    drafter.propose = lambda r, p: seen.extend(inner(r, p)) or seen[-len(r) :]
    run(
        make_engine(DECODER, drafter, num_nodes=4),
        PROMPTS[:1],
        [SamplingParams(max_tokens=6, temperature=1.0, top_k=1)],
    )
    trees = [tree for tree in seen if tree.num_drafted]
    assert {tuple(tree.parents) for tree in trees if tree.num_drafted > 1} == {(-1, 0, 1)}  # one candidate a depth


def test_the_generic_tree_has_63_nodes():
    paths = generic_paths()
    assert len(paths) == 63
    chances = dict(paths)
    assert chances[(0, 0, 0, 1)] == pytest.approx(
        GENERIC_ACCURACIES[0][0] * GENERIC_ACCURACIES[1][0] * GENERIC_ACCURACIES[2][0] * GENERIC_ACCURACIES[3][1]
    )
    assert max(len(path) for path in chances) == 4
    assert sum(len(path) == 2 for path in chances) == 28
    shape = cut(paths, 63, 4, None).shape
    assert shape.num_nodes == 63
    assert shape.expected_accepted == pytest.approx(sum(chances.values()))


def test_a_tree_is_cut_to_its_likeliest_nodes():
    card = {"choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]], "choice_probs": [0.6, 0.2, 0.4, 0.1, 0.05, 0.3]}
    paths = paths_of(card)
    assert cut(paths, 4, 9, None).shape.paths == [(0,), (1,), (0, 0), (0, 0, 0)]
    assert cut(paths, 4, 2, None).shape.paths == [(0,), (1,), (0, 0), (0, 1)]
    assert cut(paths, 9, 9, 1).shape.paths == [(0,), (0, 0), (0, 0, 0)]
    assert cut(paths, 0, 9, None).num_levels == 0
    template = cut(paths, 9, 9, None)
    assert template.levels.tolist() == [0, 0, 1, 1, 1, 2]
    assert (template.num_levels, template.width) == (3, 2)
    products = paths_of({"choices": [[0], [0, 1]], "accuracies": [[0.5, 0.2], [0.4, 0.1]]})
    assert products == (((0,), 0.5), ((0, 1), 0.05))


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ({"choices": [[0, 1]], "choice_probs": [0.1]}, "no parent"),
        ({"choices": [[0], [0]], "choice_probs": [0.1, 0.1]}, "a path twice"),
        ({"choices": [[0], [0, 0]], "choice_probs": [0.1, 0.2]}, "more often than its parent"),
        ({"choices": [[0], [1]], "choice_probs": [0.1]}, "damaged"),
        ({"choices": "all"}, "damaged"),
        ({"accuracies": 0.5}, "damaged"),
        ({"accuracies": [0.5, 0.3]}, "damaged"),
        ({"accuracies": [[1.5], [0.5]]}, "more often than its parent"),
        ({"choices": [[-1]], "choice_probs": [0.1]}, "below 0"),
    ],
    ids=str,
)
def test_a_damaged_tree_is_refused(card, reason):
    with pytest.raises(CheckpointError, match=reason):
        paths_of(card)


def test_logits_are_the_reference(kind, tmp_path):
    heads, token_map = heads_of(kind)
    drafter = drafter_of(tmp_path, heads, token_map)
    hidden = torch.randn(4, TARGET.hidden_size, dtype=torch.float64)
    found = drafter.network.heads(hidden, drafter.network.heads.num_heads).numpy()
    for head in range(found.shape[1]):
        np.testing.assert_allclose(found[:, head], reference_logits(heads, hidden, head), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.skipif(bool(native_problem()), reason=f"no native runtime: {native_problem()}")
def test_on_the_native_runtime_tokens_are_those_of_plain_decoding(tmp_path):
    files = write_tiny_llm(tmp_path)
    model = files.load("native")
    prompts = ["abc bad abc", "face 01", "cab cab cab"]
    for options in ({}, {"temperature": 0.9, "seed": 4}):
        params = SamplingParams(max_tokens=12, ignore_eos=True, **options)
        plain = [result.token_ids for result in LLM(model, "none", batch_size=1).generate(prompts, params)]
        for folder, batch_size in ((files.medusa, 1), (files.medusa_reduced, 3)):
            llm = LLM(model, {"method": "medusa", "model": str(folder)}, batch_size=batch_size)
            results = llm.generate(prompts, params)
            assert [result.token_ids for result in results] == plain
            assert all(result.stats.drafted_tokens > 20 for result in results)


def test_a_model_held_by_transformers_has_heads_too(tmp_path):
    hf_models = pytest.importorskip("tests.support.hf_models")
    model, tokenizer = hf_models.random_model(hf_models.ACCEPTED["gpt2"]()), hf_models.fast_tokenizer()
    spec = tiny_spec("llama", hidden_size=32, vocab_size=hf_models.VOCAB_SIZE)
    heads = random_heads(spec)
    config = {"method": "medusa", "model": str(save_heads(tmp_path, vllm_config(spec, heads), heads))}
    params = SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.7, seed=2)
    answers = []
    for drafter in ("none", config):
        (result,) = LLM.from_transformers(model, tokenizer, drafter).generate("the sea", params)
        answers.append(result.token_ids)
    assert result.stats.drafted_tokens > 20
    assert answers[0] == answers[1]
