"""Any transformers model: what is accepted says the same tokens with and without drafts, what cannot is refused."""

import functools
from dataclasses import replace

import pytest
import torch
import transformers as hf

from foreword.bench.fidelity import explain_difference
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.engine.step import StepParts
from foreword.errors import CapacityError, ConfigError, UnsupportedModelError
from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import SamplingParams, Warp
from foreword.sampling.sampler import Draw
from foreword.target.hf_adapter import HFDecoder
from foreword.target.hf_load import adopt_model, adopt_tokenizer
from foreword.target.hf_mask import MaskPlan
from foreword.target.hf_trial import Trial
from foreword.target.load_model import load_model
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from foreword.verify.base import Matching
from tests.support.hf_models import (
    ACCEPTED,
    CONTEXT_LEN,
    REFUSED,
    VOCAB_SIZE,
    WINDOW,
    WINDOWED,
    fast_tokenizer,
    random_model,
)  # fmt: skip
from tests.support.scripted_drafters import ScriptedDrafter, bushy
from tests.support.tiny_files import write_folder
from tests.support.tiny_models import TinyWeights, hf_model, tiny_spec
from tests.support.toy_llm import END, byte_tokenizer

pytestmark = pytest.mark.usefixtures("without_shape_checks")

CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # as in test_torch_runtime
PROMPTS = [[5, 9, 9, 5, 9, 9, 5], [40, 41, 42] * 8, [7]]  # ragged; the second is longer than the window
NUM_TOKENS = 16
GREEDY = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 0.8, "top_p": 0.95, "seed": 3}
#      root 0 ── 1 ── 3 ── 5
#        │       └─── 4
#        └───── 2 ── 6
TREE = DraftTree([11, 12, 13, 14, 15, 16, 17], [-1, 0, 0, 1, 1, 3, 2])


@functools.cache
def adopted(family: str):
    return adopt_model(random_model(ACCEPTED[family]()), byte_tokenizer(" the"))


@functools.cache
def plain_answers(family: str, is_sampled: bool) -> list[list[int]]:
    params = SamplingParams(**(SAMPLED if is_sampled else GREEDY))
    return [LLM(adopted(family), "none", batch_size=1).generate(p, params)[0].token_ids for p in PROMPTS]


def assert_same_words(family: str, params: SamplingParams, plain, answers):
    """Equal, or parted at a near-tie that rounding explains."""
    decoder = adopted(family).decoder
    for prompt, expected, answer in zip(PROMPTS, plain, answers, strict=True):
        sampler = Request(list(prompt), params, context_len=CONTEXT_LEN).sampler
        difference = explain_difference(decoder, prompt, expected, answer, sampler, 1e-3)
        assert difference is None or difference.is_near_tie, f"{family}, prompt of {len(prompt)}: {difference}"


def own_logits(family: str, token_ids):
    """What the model says by itself."""
    with torch.no_grad():
        return adopted(family).decoder.model(torch.tensor([token_ids]), use_cache=False).logits[0]


def filled(decoder, *texts):
    cache = decoder.new_cache()
    slots = [cache.open(8) for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        run(decoder, cache, [DraftTree.chain(text)], [slot], Need())
        cache.commit(slot, range(len(text)))
    return cache, slots


def run(decoder, cache, trees, slots, need=None):
    for slot, tree in zip(slots, trees, strict=True):
        cache.reserve(slot, cache.length(slot) + tree.num_nodes)
    batch = pack(trees, [cache.length(slot) for slot in slots], slots)
    return decoder.forward(batch, cache, need or Need(logits=range(batch.num_nodes)))


def ids(num: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCAB_SIZE, (num,), generator=torch.Generator().manual_seed(seed)).tolist()


# The same tokens.


@pytest.mark.parametrize("family", ACCEPTED)
def test_plain_greedy_answers_are_those_of_generate(family):
    loaded = adopted(family)
    answers = []
    for prompt in PROMPTS:
        out = loaded.decoder.model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0,
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        )  # fmt: skip
        answers.append(out[0, len(prompt) :].tolist())
    assert_same_words(family, SamplingParams(**GREEDY), plain_answers(family, False), answers)


@pytest.mark.parametrize(("drafter", "is_sampled"), [("ngram", False), ("recycling", True)])
@pytest.mark.parametrize("family", ACCEPTED)
def test_drafts_do_not_change_the_words(family, drafter, is_sampled):
    params = SamplingParams(**(SAMPLED if is_sampled else GREEDY))
    results = LLM(adopted(family), drafter, batch_size=3).generate(PROMPTS, params)
    assert sum(r.stats.drafted_tokens for r in results) > 0
    assert_same_words(family, params, plain_answers(family, is_sampled), [r.token_ids for r in results])


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("family", ACCEPTED)
def test_bushy_trees_do_not_change_the_words(family, batch_size):
    """Right and wrong branches at every depth, so that rows have to be gathered at every step."""
    loaded, params = adopted(family), SamplingParams(**SAMPLED)
    plain = plain_answers(family, True)
    answers = {tuple(p): a for p, a in zip(PROMPTS, plain, strict=True)}
    drafter = ScriptedDrafter("bushy", bushy(4), answers, VOCAB_SIZE)
    parts = StepParts(FixedController(24, "bushy", 16), drafter, Target(loaded.decoder), Matching())
    engine = Engine(parts, batch_size)
    requests = [Request(list(p), params, context_len=CONTEXT_LEN) for p in PROMPTS]
    for request in requests:
        engine.add(request)
    while any(not r.is_finished for r in requests):
        engine.step()
    assert_same_words(family, params, plain, [r.new_ids for r in requests])
    accepted = sum(r.stats.accepted_tokens for r in requests)
    assert accepted > NUM_TOKENS, "drafts that are right were hardly ever kept"


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_drafts_stop_at_the_last_learned_position(family):
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    prompt = [3, 4, 5] * 40
    plain, drafted = (LLM(adopted(family), name).generate(prompt, params)[0] for name in ("none", "ngram"))
    assert len(plain.token_ids) == len(drafted.token_ids) == CONTEXT_LEN - len(prompt)
    assert plain.finish_reason == "length"


# Trees, masks and the cache.


@pytest.mark.parametrize("family", ACCEPTED)
def test_each_node_of_a_tree_sees_its_own_path_and_nothing_else(family):
    """Two requests in a pass, one of them beyond every window."""
    decoder = adopted(family).decoder
    texts = [ids(40, 1), ids(3, 2)]
    cache, slots = filled(decoder, *texts)
    logits = run(decoder, cache, [TREE, TREE], slots).logits
    for request, text in enumerate(texts):
        for node in range(TREE.num_nodes):
            path = [TREE.token_ids[n] for n in TREE.path_to(node)]
            expected = own_logits(family, text + path)[-1]
            torch.testing.assert_close(logits[request * TREE.num_nodes + node], expected, **CLOSE)


@pytest.mark.parametrize("family", ["gpt_neox", "gemma3"])
def test_a_kept_branch_and_a_taken_back_text_are_read_on_from(family):
    decoder = adopted(family).decoder
    text = ids(30, 1)
    cache, (slot,) = filled(decoder, text)
    run(decoder, cache, [TREE], [slot])
    cache.commit(slot, [0, 2, 6])
    after = run(decoder, cache, [DraftTree.chain([50])], [slot]).logits[0]
    torch.testing.assert_close(after, own_logits(family, [*text, 11, 13, 17, 50])[-1], **CLOSE)
    cache.truncate(slot, 20)
    after = run(decoder, cache, [DraftTree.chain([50])], [slot]).logits[0]
    torch.testing.assert_close(after, own_logits(family, [*text[:20], 50])[-1], **CLOSE)


def test_the_cache_grows_and_frees_its_regions():
    decoder = adopted("llama").decoder
    cache, slots = filled(decoder, ids(20), ids(9))
    assert (cache.num_open, cache.length(slots[0]), cache.length(slots[1])) == (2, 20, 9)
    assert cache.num_bytes > 0
    keys, values = cache.rows(slots[1])
    assert keys.shape == values.shape == (3, 2, 9, 8)
    batch = pack([DraftTree.chain(ids(60))], [20], [slots[0]])
    with pytest.raises(CapacityError, match="60 nodes do not fit; reserve 80 rows"):
        decoder.forward(batch, cache, Need())
    for slot in slots:
        cache.close(slot)
    assert cache.num_open == 0
    assert cache.num_bytes == 0


# Llama against foreword's own decoder.


def llama_pair(**options):
    weights = TinyWeights(tiny_spec("llama", vocab_size=VOCAB_SIZE, context_len=CONTEXT_LEN), seed=1)
    own = TorchRuntime().decoder(weights.spec, weights)
    return own, adopt_model(hf_model(weights), byte_tokenizer(" the")).decoder


def test_a_fork_has_the_bits_of_what_it_copies_and_goes_its_own_way():
    decoder = adopted("gemma3").decoder
    cache, text = decoder.new_cache(), list(range(30, 60))
    assert cache.region_bytes(10) == 0, "nothing is known before the first pass"
    slot = cache.open(30)
    decoder.forward(pack([DraftTree.chain(text)], [0], [slot]), cache, Need())
    cache.commit(slot, range(30))
    held = cache.rows(slot)
    forked = cache.fork(slot, 25, 40)
    assert cache.num_bytes == cache.region_bytes(30) + cache.region_bytes(40) > 0
    for mine, theirs in zip(cache.rows(forked), held, strict=True):
        assert torch.equal(mine, theirs[:, :, :25])
    output = decoder.forward(pack([DraftTree.chain([7, 8])], [25], [forked]), cache, Need(logits=[0, 1]))
    alone = decoder.new_cache()
    whole = pack([DraftTree.chain([*text[:25], 7, 8])], [0], [alone.open(40)])
    expected = decoder.forward(whole, alone, Need(logits=[25, 26])).logits
    torch.testing.assert_close(output.logits, expected, **CLOSE)
    assert all(torch.equal(a, b) for a, b in zip(cache.rows(slot), held, strict=True))


@pytest.mark.parametrize("family", ["llama", *WINDOWED])
def test_shared_beginnings_longer_than_a_window_change_no_words(family):
    """The cache keeps the rows that have left a window too, so any beginning can be copied."""
    stem = [(i * 7) % 200 for i in range(2 * WINDOW + 3)]
    prompts = [[*stem, 5], [*stem, 6, 7], stem[: WINDOW + 4]]
    params = SamplingParams(**SAMPLED, n=2)
    results = LLM(adopted(family), "ngram").generate(prompts, params)
    plain = LLM(adopted(family), "none", batch_size=1, prefix_cache=False).generate(prompts, params)
    assert sum(r.stats.cached_tokens > 0 for r in results) == 5
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]


def test_llama_hands_back_what_the_own_decoder_does():
    own, general = llama_pair()
    need = Need(
        draws=[Draw(2, Warp(), None), Draw(5, Warp(), None)], logits=[6, 1], top_k=4, top_nodes=[0, 3], taps=(0, 2, 3),
        hidden=True,
    )  # fmt: skip
    outputs = []
    for decoder in (own, general):
        cache, slots = filled(decoder, ids(12, 1))
        outputs.append(run(decoder, cache, [TREE], slots, need))
        cache.commit(slots[0], [0, 1])
        outputs[-1].rows = cache.rows(slots[0])
    expected, actual = outputs
    assert actual.choices == expected.choices
    assert torch.equal(actual.top_ids, expected.top_ids)
    for name in ("logits", "top_logprobs", "taps", "hidden"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), **CLOSE)
    for mine, other in zip(actual.rows, expected.rows, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)
    assert (general.spec.num_kv_heads, general.spec.head_dim) == (own.spec.num_kv_heads, own.spec.head_dim)
    assert general.num_weight_bytes == general.spec.num_parameters * 4


def test_embeddings_may_be_given_instead_of_tokens():
    own, general = llama_pair()
    inputs = torch.randn(7, own.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    batch, rows = pack([TREE], [0], [0]), []
    for decoder in (own, general):
        cache = decoder.new_cache()
        cache.open(8)
        rows.append(decoder.forward(batch, cache, Need(logits=range(7)), inputs).logits)
    torch.testing.assert_close(rows[1], rows[0], **CLOSE)


def test_the_first_layers_draft_and_the_words_stay():
    own, general = llama_pair()
    results = []
    for decoder in (own, general):
        part = decoder.first_layers(1)
        cache, slots = filled(part, ids(12, 1))
        results.append(run(part, cache, [TREE], slots).logits)
    torch.testing.assert_close(results[1], results[0], **CLOSE)
    assert len(general.model.model.layers) == 3
    for family in ("gpt2", "gemma3"):
        params = SamplingParams(**SAMPLED)
        skipped = LLM(adopted(family), {"method": "layerskip", "exit_layer": 2}).generate(PROMPTS, params)
        assert_same_words(family, params, plain_answers(family, True), [r.token_ids for r in skipped])
        assert sum(r.stats.accepted_tokens for r in skipped) > 0


def test_token_ids_beyond_the_vocabulary_are_refused():
    decoder = adopted("gpt_neox").decoder
    cache = decoder.new_cache()
    with pytest.raises(ConfigError, match=f"the model knows 0 to {VOCAB_SIZE - 1}"):
        run(decoder, cache, [DraftTree.chain([1, VOCAB_SIZE])], [cache.open(4)])


# What is refused, and how it is found out.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_read_trees_is_refused_with_the_reason(name, dtype):
    make, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason):
        adopt_model(random_model(make()).to(dtype), byte_tokenizer(" the"))


def test_an_encoder_decoder_is_refused():
    config = hf.T5Config(d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=48, vocab_size=VOCAB_SIZE)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        adopt_model(hf.T5ForConditionalGeneration(config), byte_tokenizer(" the"))


def test_what_is_no_transformers_model_is_refused():
    with pytest.raises(ConfigError, match="the model is a Linear; allowed: a transformers model"):
        adopt_model(torch.nn.Linear(2, 2), byte_tokenizer(" the"))


class _OpenMask(MaskPlan):
    """Lets all nodes of a pass see all before them, siblings and other requests too."""

    def masks(self, batch, device, dtype):
        mask = super().masks(batch, device, dtype)
        return torch.triu(torch.full_like(mask, torch.finfo(dtype).min), diagonal=mask.shape[-1] - mask.shape[-2] + 1)


class _SiblingMask(MaskPlan):
    """Right for chains and for requests beside each other; nodes of one request see all nodes before them."""

    def masks(self, batch, device, dtype):
        starts = batch.starts
        parents = [node - 1 if node not in starts else -1 for node in range(batch.num_nodes)]
        return super().masks(replace(batch, parents=batch.parents * 0 + torch.tensor(parents).numpy()), device, dtype)


@pytest.mark.parametrize(
    ("plan", "failure"), [(_OpenMask(), "what shares the pass"), (_SiblingMask(), "branches of a tree see each other")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_trial_finds_a_mask_that_lets_too_much_through(plan, failure, dtype):
    model = random_model(ACCEPTED["gpt_neox"]()).to(dtype)
    spec = adopted("gpt_neox").decoder.spec
    assert Trial(HFDecoder(model, spec, MaskPlan())).run().failure is None
    assert failure in Trial(HFDecoder(model, spec, plan)).run().failure


def test_the_trial_finds_positions_by_the_order_of_keys():
    """Falcon's alibi, past the refusal by name."""
    model = random_model(REFUSED["falcon_alibi"][0]())
    decoder = HFDecoder(model, adopted("falcon").decoder.spec, MaskPlan())
    assert Trial(decoder).run().failure is not None


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_are_found_and_a_wrong_one_would_be(family):
    decoder = adopted(family).decoder
    half = random_model(ACCEPTED[family]()).to(torch.bfloat16)
    assert adopt_model(half, byte_tokenizer(" the")).decoder.plan == decoder.plan
    assert decoder.plan.window == WINDOW
    assert bool(decoder.plan.layer_types) == (family != "mistral")
    assert decoder.model.config.sliding_window == WINDOW  # the trial's short window was another's
    narrow = replace(decoder.plan, window=3)
    assert Trial(HFDecoder(decoder.model, decoder.spec, narrow)).run().failure is not None


def test_a_window_that_cannot_be_tried_cuts_the_context(caplog):
    model = random_model(ACCEPTED["mistral"]())
    model.model.layers[0].forward = model.model.layers[0].forward  # as accelerate's hooks do
    loaded = adopt_model(model, byte_tokenizer(" the"))
    assert loaded.decoder.spec.context_len == WINDOW
    assert "cut to the window, 16 tokens" in caplog.text
    with pytest.raises(ConfigError, match="first layers of mistral"):
        loaded.decoder.first_layers(1)


def test_rope_that_changes_with_the_length_cuts_the_context(caplog):
    from tests.support.hf_models import _GATED, _LONGROPE

    config = hf.Phi3Config(**_GATED, original_max_position_embeddings=64, rope_parameters=dict(_LONGROPE))
    assert adopt_model(random_model(config), byte_tokenizer(" the")).decoder.spec.context_len == 64
    assert "rope type longrope" in caplog.text


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_kinds_of_attention_take_the_mask(attention):
    model = random_model(ACCEPTED["gemma3"](), attn_implementation=attention)
    adopt_model(model, byte_tokenizer(" the"))
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(UnsupportedModelError, match="flash_attention_2.*attn_implementation='sdpa'"):
        adopt_model(model, byte_tokenizer(" the"))


@pytest.mark.parametrize("family", ["gpt_neox", "gemma3"])
def test_bfloat16(family):
    loaded = adopt_model(random_model(ACCEPTED[family]()).to(torch.bfloat16), byte_tokenizer(" the"))
    assert (loaded.choice.name, loaded.choice.dtype) == ("torch", "bfloat16")
    params = SamplingParams(**GREEDY)
    plain, drafted = (LLM(loaded, name).generate(PROMPTS, params) for name in ("none", "recycling"))
    assert all(len(r.token_ids) == NUM_TOKENS for r in [*plain, *drafted])
    same = sum(a.token_ids[:4] == b.token_ids[:4] for a, b in zip(plain, drafted, strict=True))
    assert same >= 2, "answers part at once, which is more than rounding"


# `LLM.from_transformers`: the tokenizer's side.

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def their_model():
    return random_model(ACCEPTED["gpt_neox"]()).train()


@pytest.fixture(scope="module")
def llm(their_model):
    return LLM.from_transformers(their_model, fast_tokenizer(chat_template=TEMPLATE), "ngram", batch_size=2)


def test_from_transformers_shares_the_weights_and_speaks_texts_and_chats(llm, their_model):
    assert llm.model.decoder.model is their_model
    assert not their_model.training
    params = SamplingParams(max_tokens=12)
    [result] = llm.generate("on the sea", params)
    assert result.prompt_token_ids == fast_tokenizer()("on the sea").input_ids
    assert result.text == fast_tokenizer().decode(result.token_ids, skip_special_tokens=True)
    chat = [{"role": "user", "content": "hi"}]
    assert llm.encode(chat) == fast_tokenizer()("user: hi\n").input_ids
    assert "".join(piece.text for piece in llm.stream("on the sea", params)) == result.text


def test_the_tokenizer_ends_answers_and_serves_stop_strings_and_grammars(llm):
    pytest.importorskip("llguidance")
    from foreword.sampling.grammar import Grammar

    assert llm.model.checkpoint.eos_token_ids == (llm.tokenizer.token_id(END),)
    text = llm.generate("abc", SamplingParams(max_tokens=30, ignore_eos=True))[0].text
    stop = next(character for character in text[3:] if character.isprintable())
    [stopped] = llm.generate("abc", SamplingParams(max_tokens=30, ignore_eos=True, stop=[stop]))
    assert (stopped.finish_reason, stopped.text) == ("stop", text[: text.index(stop)])
    [guided] = llm.generate("abc", SamplingParams(max_tokens=30, grammar=Grammar.regex("(the|a) [0-9]{3}")))
    assert guided.text[-3:].isdigit()
    assert guided.text.startswith(("the ", "a "))


def test_a_tokenizer_without_a_fast_backend_is_refused():
    with pytest.raises(ConfigError, match="the tokenizer is a object, which has no fast backend"):
        LLM.from_transformers(random_model(ACCEPTED["llama"]()), object())


def test_the_owner_keeps_its_tokenizer_as_it_was():
    theirs = fast_tokenizer()
    theirs.backend_tokenizer.enable_truncation(4)
    ours = adopt_tokenizer(theirs, "test")
    assert len(ours.encode("a long text of many bytes")) > 4
    assert theirs.backend_tokenizer.truncation is not None


# Folders that foreword's own decoders do not cover, and draft models.


def folder_of(path, config, seed=0):
    random_model(config, seed).save_pretrained(path)
    fast_tokenizer().save_pretrained(path)
    return path


def test_a_folder_of_another_architecture_is_run_through_transformers(tmp_path, caplog):
    folder = folder_of(tmp_path / "neox", ACCEPTED["gpt_neox"]())
    loaded = load_model(folder, device="cpu")
    assert "running it through transformers, which is slower" in caplog.text
    assert (loaded.choice.name, loaded.choice.dtype) == ("torch", "float32")
    answers = [r.token_ids for r in LLM(loaded, "ngram").generate(PROMPTS, SamplingParams(**GREEDY))]
    assert_same_words("gpt_neox", SamplingParams(**GREEDY), plain_answers("gpt_neox", False), answers)
    with pytest.raises(UnsupportedModelError, match="architecture 'gpt_neox'"):
        load_model(folder, dtype="int8")


def test_a_folder_that_transformers_cannot_run_either_says_so(tmp_path):
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        load_model(folder_of(tmp_path / "mamba", REFUSED["mamba"][0]()))


def test_draft_models_of_either_kind(tmp_path):
    spec = tiny_spec("llama", vocab_size=VOCAB_SIZE + 5, context_len=CONTEXT_LEN)  # with rows of padding
    own = write_folder(tmp_path / "own", TinyWeights(spec))
    fast_tokenizer().save_pretrained(own)
    padded = ACCEPTED["gpt_neox"]()
    padded.vocab_size += 5
    general = folder_of(tmp_path / "general", padded)
    params = SamplingParams(**SAMPLED)
    for folder in (own, general):
        results = LLM(adopted("gpt_neox"), f"draft_model={folder}", batch_size=3).generate(PROMPTS, params)
        assert sum(r.stats.drafted_tokens for r in results) > 0
        assert_same_words("gpt_neox", params, plain_answers("gpt_neox", True), [r.token_ids for r in results])
