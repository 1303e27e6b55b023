"""The default model on the native runtime: every drafter gives the very tokens of plain decoding, greedy and sampled."""

import pytest

from foreword.bench.soak import soak, soak_prompts
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.memory.drafter import MemoryDrafter
from foreword.draft.registry import drafter_types
from foreword.engine.llm import LLM
from foreword.sampling.params import SamplingParams

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("without_shape_checks")]

PROMPTS = [
    *soak_prompts(100)[::33],
    [
        {
            "role": "user",
            "content": "Rename x to total in:\ndef add(x, y):\n    x = x + y\n    return x\nGive the function.",
        }
    ],
]
NUM_TOKENS = 28  # of an answer; benchmarks/equality.py asks for more, and more prompts
OPTIONS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 5},
    "truncated": {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 6},
    "penalties": {"temperature": 0.7, "seed": 7, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
}
CONFIGS = {one.name: {"method": one.name} for one in drafter_types() if one.drafts and not one.takes}


@pytest.fixture(scope="module")
def model(native_default_model):
    return native_default_model


@pytest.fixture(scope="module")
def plain(model):
    def answer(options):
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **options)
        return [r.token_ids for r in LLM(model, "none", batch_size=1).generate(PROMPTS, params)]

    return {name: answer(options) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("drafter", CONFIGS)
def test_a_drafter_never_changes_a_token(model, plain, drafter, options):
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **OPTIONS[options])
    results = LLM(model, CONFIGS[drafter], batch_size=3).generate(PROMPTS, params)
    assert [r.token_ids for r in results] == plain[options]


def test_a_drafter_that_is_the_target_is_always_right(model, plain):
    """The default model drafting for itself: every draft is accepted ([R24]), which any slip of its cache would break."""
    config = {"method": "draft_model", "model": str(model.checkpoint.path), "num_speculative_tokens": 3}
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    results = LLM(model, config, batch_size=2).generate(PROMPTS, params)
    assert [r.token_ids for r in results] == plain["greedy"]
    assert all(r.stats.accepted_tokens == r.stats.drafted_tokens for r in results)


def drafted(model, plain, method):
    """Greedy answers with the drafter that comes with foreword: found by the model's fingerprint, it fits and changes no token."""
    if trained_drafter(method, model.checkpoint.fingerprint) is None:
        pytest.skip(f"no {method} lies in checkpoints/: it comes with the source, not with an installed package")
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    results = LLM(model, method, batch_size=3).generate(PROMPTS, params)
    assert [r.token_ids for r in results] == plain["greedy"]
    return results


@pytest.mark.parametrize(
    ("method", "least"), [("eagle3", 1.4), ("eagle2", 1.4), ("eagle", 1.4), ("medusa", 1.2), ("draft_model", 1.2)]
)
def test_a_network_that_comes_with_foreword_guesses_well_enough_for_its_card(model, plain, method, least):
    results = drafted(model, plain, method)
    assert sum(r.stats.new_tokens - 1 for r in results) / sum(r.stats.num_steps for r in results) > least


def test_the_table_that_comes_with_foreword_is_asked_by_auto(model, plain):
    results = drafted(model, plain, "ngram_lm")
    assert sum(r.stats.accepted_tokens for r in results) > 0.1 * sum(r.stats.num_steps for r in results)
    without_memory = LLM(model, {"method": "auto", "memory": False}).engine.parts.drafter
    assert without_memory.name == "suffix,ngram_lm"
    auto = LLM(model).engine.parts.drafter
    assert isinstance(auto, MemoryDrafter)
    assert auto.guesser.table is not None


def test_prefixes_from_the_disk(model, tmp_path):
    """A chat that goes on after a restart, with a drafter that learns from what is read and has not seen its beginning."""
    first = {"role": "user", "content": "Explain, with an example each: " + ", ".join(str(n) for n in range(24))}
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with LLM(model, "none", prompt_cache=tmp_path) as llm:
        (answer,) = llm.generate([[first]], params)
    chat = [first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Shorter, please."}]
    (cold,) = LLM(model, "none", batch_size=1, prefix_cache=False).generate([chat], params)
    method = "auto" if trained_drafter("eagle3", model.checkpoint.fingerprint) is None else "eagle3"
    with LLM(model, method, prompt_cache=tmp_path) as llm:
        (result,) = llm.generate([chat], params)
    assert result.stats.cached_tokens >= 128
    assert result.token_ids == cold.token_ids


def test_a_short_soak(model):
    """720 tokens of chains, trees, bursts and flaws; `make soak` does 100,000."""
    counts = soak(model, num_prompts=3, tokens_per_run=40)
    assert counts["tokens"] == 3 * 2 * 3 * 40
    assert counts["near_ties"] == 0
