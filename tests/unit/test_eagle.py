"""EAGLE drafts: what it proposes is what its network says of the text, however the text came about; no word changes."""

import json
import pickle
from dataclasses import replace

import pytest
import torch

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.base import BaseDrafter, known_ids
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.draft_config import DraftConfig
from foreword.draft.heads import eagle_reader as reader_module
from foreword.draft.heads.eagle import Eagle3Options, EagleDrafter
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.heads.eagle_network import id_map, taps_of
from foreword.draft.heads.eagle_tree import ShapedGrowth
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.make_drafter import make_drafter
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.kv_budget import KVBudget
from foreword.engine.request import Request
from foreword.engine.step import StepParts
from foreword.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import load_model
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from foreword.tree.shapes import from_paths
from foreword.verify.base import Matching
from tests.support.drafters import Checked
from tests.support.eagle_heads import head_config, head_tensors, network, reference_layer, save_head
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run

TARGET = tiny_spec("llama", num_layers=8)
WEIGHTS = TinyWeights(TARGET)
RUNTIME = TorchRuntime(dtype="float64")
DECODER = RUNTIME.decoder(TARGET, WEIGHTS)
PROMPTS = [[5, 17, 3, 42, 8, 1], [1, 2, 3, 1, 2, 3, 1], [90]]
HALF = torch.arange(1, TARGET.vocab_size, 2)  # a reduced vocabulary
KINDS = ["eagle", "eagle2", "eagle3", "eagle3-reduced"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small only wait for each other
    yield
    torch.set_num_threads(threads)


def folder_of(tmp_path_factory, kind):
    is_eagle3 = kind.startswith("eagle3")
    ids = HALF if kind.endswith("reduced") else None
    tensors = head_tensors(TARGET, is_eagle3, seed=3, draft_ids=ids)
    return save_head(tmp_path_factory.mktemp(kind), head_config(TARGET, is_eagle3), tensors)


@pytest.fixture(scope="module", params=KINDS)
def kind_and_folder(request, tmp_path_factory):
    return request.param.partition("-")[0], folder_of(tmp_path_factory, request.param)


def drafter_of(kind, folder, **options):
    made = network(folder, kind == "eagle3", TARGET, WEIGHTS, RUNTIME)
    return EagleDrafter(made, Eagle3Options(**options), kind)


def features_of(token_ids, taps):
    """Features of every token, from one pass over the whole text."""
    cache = DECODER.new_cache()
    batch = pack([DraftTree.chain(token_ids)], [0], [cache.open(len(token_ids))])
    output = DECODER.forward(batch, cache, Need(taps=taps, hidden=not taps))
    return output.taps.flatten(1) if taps else output.hidden


class Oracle:
    """What a network says after a text, in plain torch: all pairs from a position on, for every guess anew."""

    def __init__(self, folder, taps):
        self.files, self.taps = EagleFiles(folder), taps
        self.tensors = {stored: tensor.double() for stored, tensor in self.files._stored.items()}
        self.ids = id_map(self.files, TARGET.vocab_size)
        self.embedding = WEIGHTS.tensor("embed.weight").double()

    def states(self, text, path, begin=0):
        """States of the text's pairs and of those drafted after it."""
        features, tokens = features_of(text[:-1], self.taps)[begin:], [*text[begin + 1 :], *path]
        fc, bias = self.tensors["fc.weight"], self.tensors.get("fc.bias", 0.0)
        if self.taps:
            inputs = features @ fc.T
            for _ in path:
                embedded = self.embedding[tokens[: len(inputs)]]
                state = reference_layer(TARGET, self.tensors, inputs, embedded, self.files.config)[-1:]
                inputs = torch.cat((inputs, state))
            return reference_layer(TARGET, self.tensors, inputs, self.embedding[tokens], self.files.config)
        for done in range(len(path) + 1):
            embedded = self.embedding[tokens[: len(features)]]
            inputs = torch.cat((embedded, features), -1) @ fc.T + bias
            states = reference_layer(TARGET, self.tensors, inputs, None, {})
            if done < len(path):
                features = torch.cat((features, states[-1:]))
        return states

    def probs_after(self, text, path, begin=0):
        """Distribution over the target's tokens after the text and a drafted path."""
        state = self.states(text, path, begin)[-1]
        if not self.taps:
            return (self.embedding @ state).softmax(-1)
        normed = state * torch.rsqrt(state.pow(2).mean() + TARGET.norm_eps) * self.tensors["norm.weight"]
        probs = (self.tensors["lm_head.weight"] @ normed).softmax(-1)
        if self.ids is None:
            return probs
        return torch.zeros(TARGET.vocab_size, dtype=probs.dtype).index_copy_(0, self.ids, probs)


class ComparedWithOracle(Checked):
    """Each greedy proposal holds the network's own chances along every path, and chains its most probable tokens."""

    def __init__(self, drafter, oracle, eagle=None):
        super().__init__(drafter)
        self.oracle, self.eagle, self.num_compared = oracle, eagle or drafter, 0
        self.begins = []  # of each proposal, the position of the first pair that the layer knows

    def propose(self, requests, plans):
        trees = super().propose(requests, plans)
        for request, tree in zip(requests, trees, strict=True):
            place = self.eagle.reader._places[request.request_id]
            begin = place.num_read - place.num_rows
            if tree.num_drafted:
                self.begins.append(begin)
            for node in range(tree.num_known, tree.num_nodes):
                path = [tree.token_ids[n] for n in tree.path_to(node) if n >= tree.num_known]
                probs = self.oracle.probs_after(request.token_ids, path[:-1], begin)
                parent = tree.accept_probs[tree.parents[node]]
                assert tree.accept_probs[node] == pytest.approx(parent * float(probs[path[-1]]), rel=1e-4)
                if tree.is_chain:
                    assert path[-1] == int(probs.argmax())
                self.num_compared += 1
        cache = self.eagle.reader.cache
        for request in requests:  # nothing of a rollout stays, and no pair is missing that the text has
            place = self.eagle.reader._places[request.request_id]
            assert cache.length(place.slot) == place.num_rows <= place.num_read <= max(request.kv_len, 0)
        return trees


class Rhythm(FixedController):
    """Steps with few, many and no drafts in turn."""

    sizes = (1, 1, 3, 0, 0, 1, 6, 1, 0, 2)
    step = 0

    def plan(self, requests):
        self.step += 1
        self.num_nodes = self.sizes[self.step % len(self.sizes)]
        return super().plan(requests)


@pytest.mark.parametrize("width", [1, 3])
def test_a_proposal_is_what_the_network_says_of_the_text(kind_and_folder, width):
    """Whatever the steps before were: accepted drafts or none, plain steps that it does not see, a prompt read in chunks."""
    kind, folder = kind_and_folder
    if (kind, width) == ("eagle", 1):
        pytest.skip("a chain of eagle is a chain of eagle2")
    drafter = drafter_of(kind, folder, draft_tree_width=width, draft_tree_depth=3)
    compared = ComparedWithOracle(drafter, Oracle(folder, drafter.need.taps))
    engine = make_engine(DECODER, compared, num_nodes=5, prefill_chunk=4)
    engine.parts = replace(engine.parts, controller=Rhythm(5, "test", 4))
    run(engine, PROMPTS[:2], [SamplingParams(max_tokens=10)] * 2)
    assert compared.num_compared > 10
    assert 0 in compared.begins, "nothing is left out of a short text"
    assert max(compared.begins) > 0, "after steps that it has not seen it begins anew"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.3}], ids=repr)
def test_tokens_are_those_of_plain_decoding(kind_and_folder, options):
    kind, folder = kind_and_folder
    params = [SamplingParams(max_tokens=6, **options)] * len(PROMPTS)
    plain = [request.new_ids for request in run(make_engine(DECODER), PROMPTS, params)]
    for width, batch_size in ((3, 3), (1, 1))[: 2 if kind == "eagle3" else 1]:
        drafter = Checked(drafter_of(kind, folder, draft_tree_width=width, draft_tree_depth=3))
        requests = run(make_engine(DECODER, drafter, num_nodes=4, batch_size=batch_size), PROMPTS, params)
        assert [request.new_ids for request in requests] == plain
        assert drafter.num_drafted > 20
        assert drafter.drafter.reader.cache.num_open == 0


def taught_head(is_eagle3, text, num_steps):
    """A network taught one text by gradient descent: at each pair (f_t, e_{t+1}) the token t + 2."""
    taps = taps_of({}, TARGET) if is_eagle3 else ()
    tensors = head_tensors(TARGET, is_eagle3)
    features = features_of(text[:-1], taps).float().clone()
    embedded = WEIGHTS.tensor("embed.weight")[text[1:]]
    learned = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    optimiser = torch.optim.Adam(learned.values(), lr=5e-3)
    wanted = torch.tensor(text[2:])
    for _ in range(num_steps):
        optimiser.zero_grad()
        if is_eagle3:
            states = reference_layer(TARGET, learned, features @ learned["fc.weight"].T, embedded, {})
            normed = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + TARGET.norm_eps)
            logits = (normed * learned["norm.weight"]) @ learned["lm_head.weight"].T
        else:
            inputs = torch.cat((embedded, features), -1) @ learned["fc.weight"].T + learned["fc.bias"]
            logits = reference_layer(TARGET, learned, inputs, None, {}) @ WEIGHTS.tensor("embed.weight").T
        torch.nn.functional.cross_entropy(logits[:-1], wanted).backward()
        optimiser.step()
    return {name: tensor.detach() for name, tensor in learned.items()}


@pytest.mark.parametrize("kind", ["eagle2", "eagle3"])
def test_a_network_that_knows_the_text_is_right(kind, tmp_path):
    """It was taught pairs of a feature and the token after it, outside of the drafter: one place off and it is lost."""
    params, prompt = SamplingParams(max_tokens=41), PROMPTS[0]
    (plain,) = run(make_engine(DECODER), [prompt], [params])
    is_eagle3 = kind == "eagle3"
    tensors = taught_head(is_eagle3, plain.token_ids, 120)
    folder = save_head(tmp_path, head_config(TARGET, is_eagle3), tensors)
    (request,) = run(make_engine(DECODER, drafter_of(kind, folder), num_nodes=1), [prompt], [params])
    assert request.new_ids == plain.new_ids
    assert request.stats.accepted_tokens >= 0.95 * request.stats.drafted_tokens > 15


def test_of_a_long_text_the_last_pairs_are_read(monkeypatch, tmp_path_factory):
    """Of a prompt, however it is cut in chunks; and of what went by while another drafted."""
    monkeypatch.setattr(reader_module, "WINDOW", 5)
    folder = folder_of(tmp_path_factory, "eagle3")
    prompt = [(7 * i) % 97 for i in range(38)]
    for chunk, first in ((9, 31), (2, 31), (50, 33)):
        drafter = drafter_of("eagle3", folder, draft_tree_width=1)
        compared = ComparedWithOracle(drafter, Oracle(folder, drafter.need.taps))
        run(make_engine(DECODER, compared, num_nodes=2, prefill_chunk=chunk), [prompt], [SamplingParams(max_tokens=4)])
        assert compared.num_compared > 2
        assert set(compared.begins) == {first}
        assert 5 <= len(prompt) - first <= 10


class Seldom(BaseDrafter):
    """A drafter that is asked every so many steps, and sees all of them."""

    def __init__(self, inner, every):
        self.inner, self.every, self.num_asked = inner, every, 0
        self.need, self.name = replace(inner.need, can_miss=False), inner.name

    def start(self, request):
        self.inner.start(request)

    def stop(self, request):
        self.inner.stop(request)

    def observe(self, *args):
        self.inner.observe(*args)

    def propose(self, requests, plans):
        self.num_asked += 1
        if self.num_asked % self.every:
            return [DraftTree.chain(known_ids(r, plan)) for r, plan in zip(requests, plans, strict=True)]
        return self.inner.propose(requests, plans)


def test_what_waits_long_is_left_out(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(reader_module, "WINDOW", 4)
    folder = folder_of(tmp_path_factory, "eagle3")
    drafter = drafter_of("eagle3", folder, draft_tree_width=1)
    compared = ComparedWithOracle(drafter, Oracle(folder, drafter.need.taps))
    run(make_engine(DECODER, Seldom(compared, 12), num_nodes=2), [PROMPTS[0]], [SamplingParams(max_tokens=50)])
    gaps = [b - a for a, b in zip(compared.begins, compared.begins[1:], strict=False)]
    assert len(gaps) >= 2
    assert all(gap >= 4 for gap in gaps), "each proposal comes after more than twice the window"


def test_in_a_cascade_it_sees_what_others_proposed(tmp_path_factory):
    folder = folder_of(tmp_path_factory, "eagle3")
    params = [SamplingParams(max_tokens=16)] * 2
    prompts = [PROMPTS[1] * 2, PROMPTS[0]]
    plain = [request.new_ids for request in run(make_engine(DECODER), prompts, params)]
    for is_merging in (False, True):
        eagle = drafter_of("eagle3", folder, draft_tree_width=2)
        own = ComparedWithOracle(eagle, Oracle(folder, eagle.need.taps))
        cascade = CascadeDrafter([NgramDrafter(), own], 0.5, is_merging)
        requests = run(make_engine(DECODER, Checked(cascade), num_nodes=4), prompts, params)
        assert [request.new_ids for request in requests] == plain
        assert own.num_compared > 10


@pytest.mark.parametrize("prompt_len", [5, 20, 31, 40])
def test_at_its_contexts_end_it_begins_anew(prompt_len, tmp_path):
    folder = save_head(tmp_path, head_config(TARGET, True, max_position_embeddings=32), head_tensors(TARGET, True))
    drafter = drafter_of("eagle3", folder, draft_tree_width=1, draft_tree_depth=3)
    compared = ComparedWithOracle(drafter, Oracle(folder, drafter.need.taps))
    positions = []
    inner = drafter.reader.decoder.forward
    drafter.reader.decoder.forward = lambda batch, *rest: (
        positions.extend(batch.positions.tolist()) or inner(batch, *rest)
    )
    prompt, params = [i % 90 for i in range(prompt_len)], [SamplingParams(max_tokens=50)]
    (plain,) = run(make_engine(DECODER), [prompt], params)
    (request,) = run(make_engine(DECODER, compared, num_nodes=3), [prompt], params)
    assert request.new_ids == plain.new_ids
    assert max(positions) < 32
    assert len(set(compared.begins)) >= 2
    assert len(compared.begins) > 10, "it drafts on all the way"


def answer(engine, prompt):
    request = Request(list(prompt), SamplingParams(max_tokens=8), context_len=512)
    engine.add(request)
    while not request.is_finished:
        engine.step()
    return request


def test_a_text_whose_beginning_it_did_not_see_is_drafted_for_after_a_pass(kind_and_folder):
    """As where a conversation goes on in a region that is there already."""
    kind, folder = kind_and_folder
    drafter = drafter_of(kind, folder, draft_tree_width=1, draft_tree_depth=2)
    compared = ComparedWithOracle(drafter, Oracle(folder, drafter.need.taps))
    parts = StepParts(FixedController(3, "test"), compared, Target(DECODER), Matching())
    engine = Engine(parts, 1, KVBudget(max_finished=1))
    first = answer(engine, PROMPTS[0])
    longer = [*first.token_ids, 4, 9]
    num_compared, compared.begins = compared.num_compared, []
    second = answer(engine, longer)
    (plain,) = run(make_engine(DECODER), [longer], [SamplingParams(max_tokens=8)])
    assert second.new_ids == plain.new_ids
    assert compared.num_compared > num_compared
    assert min(compared.begins) >= len(first.token_ids) - 1, "what was read before it began is not read again"


@pytest.mark.parametrize("options", [{}, {"norm_before_residual": True}, {"norm_output": True}], ids=repr)
def test_the_layer_is_the_reference(options, tmp_path):
    config = head_config(TARGET, True, **options)
    drafter = drafter_of("eagle3", save_head(tmp_path, config, head_tensors(TARGET, True, seed=7)))
    oracle = Oracle(tmp_path, drafter.need.taps)
    text = [5, 17, 3, 42, 8, 11, 60]
    reader, cache = drafter.reader, drafter.reader.decoder.new_cache()
    inputs = reader.fusion.begin(features_of(text[:-1], drafter.need.taps), text[1:])
    batch = pack([DraftTree.chain(text[1:])], [0], [cache.open(16)])
    output = reader.decoder.forward(batch, cache, Need(taps=(1,), hidden=True), inputs)
    expected = oracle.states(text, [])
    torch.testing.assert_close(output.taps[:, 0], expected)
    assert (reader._state_need.hidden, reader._state_need.taps) == (
        (True, ()) if "norm_output" in options else (False, (1,))
    )


def test_taps_follow_the_convention():
    """Inputs of layers 2, L // 2 and L - 3: of 8 layers 2, 4 and 5."""
    assert taps_of({}, TARGET) == (2, 4, 5)
    assert taps_of({}, replace(TARGET, num_layers=30)) == (2, 15, 27)
    assert taps_of({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}}, TARGET) == (1, 3, 7)
    assert taps_of({"eagle_aux_hidden_state_layer_ids": [0, 8]}, TARGET) == (0, 8)
    for wrong in ([2, 4, 9], [2, 2, 4], [], "all", [-1, 2, 3]):
        with pytest.raises(CheckpointError, match="allowed: different layers from 0 to 8"):
            taps_of({"eagle_aux_hidden_state_layer_ids": wrong}, TARGET)


def test_a_reduced_vocabulary_names_the_targets_tokens(tmp_path):
    ids = torch.tensor([0, 3, 4, 50, 96])
    tensors = head_tensors(TARGET, True, draft_ids=ids)
    folder = save_head(tmp_path, head_config(TARGET, True), tensors)
    assert id_map(EagleFiles(folder), TARGET.vocab_size).tolist() == ids.tolist()
    drafter = Checked(drafter_of("eagle3", folder))
    seen = []
    inner = drafter.drafter.propose
    drafter.drafter.propose = lambda r, p: seen.extend(inner(r, p)) or seen[-len(r) :]
    params = [SamplingParams(max_tokens=6), SamplingParams(max_tokens=6, temperature=1.0, seed=1)]
    run(make_engine(DECODER, drafter, num_nodes=6), PROMPTS[:2], params)
    drafted = {token for tree in seen for token in tree.token_ids[tree.num_known :]}
    assert drafted <= set(ids.tolist())
    assert len(drafted) > 1
    for change, message in (
        ({"d2t": tensors["d2t"] + 1}, "outside the target's 0 to 96"),
        ({"d2t": tensors["d2t"].flip(0)}, "do not ascend"),
        ({"t2d": ~tensors["t2d"]}, "does not name the tokens that t2d marks"),
    ):
        save_head(folder, head_config(TARGET, True), tensors | change)
        with pytest.raises(CheckpointError, match=message):
            id_map(EagleFiles(folder), TARGET.vocab_size)


def load(folder, kind="eagle3", target=TARGET):
    return network(folder, kind == "eagle3", target, WEIGHTS, RUNTIME)


def test_spellings_of_other_projects(tmp_path):
    """layers.0 for midlayer, the layer's options nested, the embedding of its own, a pickle of plain tensors."""
    tensors = head_tensors(TARGET, True)
    plain = load(save_head(tmp_path / "a", head_config(TARGET, True), tensors))
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    renamed["embed_tokens.weight"] = WEIGHTS.tensor("embed.weight").clone()
    config = {"architectures": ["Eagle3Speculator"], "norm_before_residual": False}
    config |= {"transformer_layer_config": {**head_config(TARGET, True), "model_type": "llama"}}
    nested = load(save_head(tmp_path / "b", config, renamed))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text(json.dumps(head_config(TARGET, True)))
    torch.save(tensors, tmp_path / "c" / "pytorch_model.bin")
    old = load(tmp_path / "c")
    states = []
    for made in (plain, nested, old):
        decoder = made.reader.decoder
        cache = decoder.new_cache()
        batch = pack([DraftTree.chain([3, 4, 5])], [0], [cache.open(8)])
        inputs = torch.linspace(-1, 1, 3 * 48, dtype=torch.float64).view(3, 48)
        states.append(decoder.forward(batch, cache, Need(logits=[2]), inputs).logits)
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Runs:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "config.json").write_text(json.dumps(head_config(TARGET, True)))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Runs()}, protocol=2))
    with pytest.raises(CheckpointError, match="does not hold plain tensors"):
        EagleFiles(tmp_path)


def test_misfits_are_refused_with_the_reason(tmp_path):
    tensors, config = head_tensors(TARGET, True), head_config(TARGET, True)

    def refused(error, message, changed=None, kind="eagle3", target=TARGET, without=(), **options):
        kept = {name: tensor for name, tensor in (tensors | (changed or {})).items() if name not in without}
        with pytest.raises(error, match=message):
            load(save_head(tmp_path, config | options, kept), kind, target)

    refused(UnsupportedModelError, "holds an EAGLE-3 network; use it as eagle3=", kind="eagle2")
    refused(CheckpointError, "made for a vocabulary of 98 tokens; the target has 97", vocab_size=98)
    refused(CheckpointError, r"fc reads 144 values; this target gives 192", target=replace(TARGET, hidden_size=64))
    refused(CheckpointError, r"fc reads 144 values; this target gives 96", eagle_aux_hidden_state_layer_ids=[1, 2])
    refused(CheckpointError, "shape .*; was it made for another model", num_key_value_heads=3)
    refused(CheckpointError, "no tensor 'layers.0.down.weight'", without=("midlayer.mlp.down_proj.weight",))
    refused(UnsupportedModelError, "does not use: mask_hidden", {"mask_hidden": torch.zeros(1)})
    refused(CheckpointError, "no table d2t says", {"lm_head.weight": torch.zeros(40, 48)})
    save_head(tmp_path, head_config(TARGET, False), head_tensors(TARGET, False))
    with pytest.raises(UnsupportedModelError, match="holds an EAGLE-1 or EAGLE-2 network; use it as eagle2="):
        load(tmp_path)
    with pytest.raises(ModelNotFoundError, match="there is no drafter"):
        EagleFiles(tmp_path / "nowhere")


def test_the_card_says_how_and_the_user_has_the_last_word(tmp_path):
    card = {"num_speculative_tokens": 9, "draft_tree_width": 2, "draft_tree_depth": 3}
    folder = save_head(tmp_path, head_config(TARGET, True, foreword=card), head_tensors(TARGET, True))
    drafter = drafter_of("eagle3", folder)
    assert (drafter.default_num_nodes, drafter.autoregression.width, drafter.autoregression.tree_depth) == (9, 2, 3)
    drafter = drafter_of("eagle3", folder, draft_tree_width=5, draft_tree_depth=4)
    assert (drafter.autoregression.width, drafter.autoregression.tree_depth) == (5, 4)
    save_head(tmp_path, head_config(TARGET, True, foreword={"draft_tree_width": 0}), head_tensors(TARGET, True))
    with pytest.raises(CheckpointError, match="card says draft_tree_width = 0; allowed"):
        drafter_of("eagle3", tmp_path)


@pytest.mark.parametrize("kind", ["eagle", "eagle2", "eagle3"])
def test_it_needs_a_network(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="loaded beside a target that was loaded by name"):
        make_drafter(DraftConfig(method=kind), Target(DECODER))
    model = load_model(write_tiny_chat(tmp_path / "model"), runtime="torch")
    with pytest.raises(ConfigError, match=f"none is installed; give one as {kind}=PATH"):
        make_drafter(DraftConfig(method=kind), Target(model.decoder, model))


def test_a_folder_without_a_network_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"holds no drafter: there is no config\.json in it"):
        EagleFiles(tmp_path)


def test_a_network_made_for_the_model_is_found_by_its_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))
    model = load_model(write_tiny_chat(tmp_path / "model"), runtime="torch")
    spec = model.checkpoint.spec
    shelf = tmp_path / "cache" / "checkpoints"
    for name, fingerprint in (("another", "0" * 64), ("own", model.checkpoint.fingerprint)):
        card = {"method": "eagle3", "target_fingerprint": fingerprint, "draft_tree_width": 3}
        config = head_config(spec, True, foreword=card)
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        save_head(shelf / name, config, head_tensors(spec, True))
    (shelf / "broken").mkdir()
    (shelf / "broken" / "config.json").write_text("[]")
    assert trained_drafter("eagle3", model.checkpoint.fingerprint) == shelf / "own"
    assert trained_drafter("eagle2", model.checkpoint.fingerprint) is None
    drafter = make_drafter(DraftConfig(method="eagle3"), Target(model.decoder, model))
    assert drafter.autoregression.width == 3


def test_a_static_tree_takes_the_ranks_of_its_shape():
    growth = ShapedGrowth(from_paths({(0,): 0.5, (1,): 0.2, (0, 0): 0.3, (0, 2): 0.1}))
    growth.add(-1, [10, 11, 12], [-1.0, -2.0, -3.0])
    assert growth.token_ids == [10, 11]
    assert growth.advance(99) == [0]
    growth.add(0, [20, 21, 22], [-0.5, -1.5, -2.5])
    assert growth.token_ids == [10, 11, 20, 22]
    assert growth.advance(99) == []
    tree = growth.best([7], 99)
    assert (list(tree.token_ids), list(tree.parents)) == ([7, 10, 11, 20, 22], [-1, 0, 0, 1, 1])
