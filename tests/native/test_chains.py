"""Chains drafted in one call are those drafted pass by pass: the same tokens, and the same chances."""

import pytest

from foreword.draft.draft_config import DraftConfig
from foreword.draft.model.autoregress import Autoregression
from foreword.engine.llm import LLM
from foreword.errors import KernelError
from foreword.runtime.base import Chains
from foreword.runtime.native_runtime import NativeDecoder
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Draw
from foreword.sampling.warp import Warp
from tests.support.tiny_llm import write_tiny_llm

DRAFTERS = {
    "draft_model": {"model": "{draft}"},
    "eagle3": {"model": "{eagle3}"},
    "eagle3-reduced": {"model": "{eagle3_reduced}"},
    "layerskip": {"exit_layer": 1},
    "comb": {"model": "{eagle3_reduced}", "draft_tree_width": 3},
    "sure": {"model": "{draft}", "draft_confidence_threshold": 0.45},
}
PROMPTS = ["abc face", "bad", 'he {"ab":', "gg gg gg"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(files):
    return files.load("native")


def config_of(name: str, files, num_tokens: int = 4) -> DraftConfig:
    values = {
        key: value.format(**vars(files)) if isinstance(value, str) else value for key, value in DRAFTERS[name].items()
    }
    values = {"draft_tree_width": 1, **values}
    path = values.pop("model", None)
    method = {"sure": "draft_model", "comb": "eagle3"}.get(name, name.split("-")[0])
    return DraftConfig(method=method, path=path, num_speculative_tokens=num_tokens, options=values)


def proposals(model, config: DraftConfig, params: SamplingParams, monkeypatch, one_call: bool):
    """What an engine drafts on its way, its answers, and how many calls drafted whole chains."""
    llm = LLM(model, config, batch_size=3, policy="fixed")
    drafter, seen, calls = llm.engine.parts.drafter, [], []
    with monkeypatch.context() as patch:
        propose, draft = drafter.propose, NativeDecoder.draft_chains

        def spy(*args):
            trees = propose(*args)
            seen.append([(list(tree.token_ids), list(tree.accept_probs or ())) for tree in trees])
            return trees

        patch.setattr(drafter, "propose", spy)
        patch.setattr(NativeDecoder, "draft_chains", lambda self, *args: (calls.append(1), draft(self, *args))[1])
        if not one_call:
            patch.setattr(Autoregression, "_rolled_out", lambda *_: False)
        answers = [result.token_ids for result in llm.generate(PROMPTS, params)]
    return seen, answers, len(calls)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", DRAFTERS)
def test_one_call_drafts_what_a_call_a_pass_does(name, temperature, files, model, monkeypatch):
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=24)
    config = config_of(name, files)
    by_pass, expected, none = proposals(model, config, params, monkeypatch, one_call=False)
    at_once, answers, calls = proposals(model, config, params, monkeypatch, one_call=True)
    assert at_once == by_pass
    assert answers == expected
    assert none == 0
    assert any(len(tokens) > 2 for step in at_once for tokens, _ in step)
    needs_candidates = name == "comb" and temperature > 0
    assert (calls > 0) == (not needs_candidates), "several guesses with noise are drawn among candidates, pass by pass"


def test_each_request_has_its_own_depth_and_room(files, model, monkeypatch):
    params = [SamplingParams(max_tokens=n) for n in (2, 3, 5, 24)]
    config = config_of("draft_model", files, 6)
    assert (
        proposals(model, config, params, monkeypatch, True)[:2]
        == proposals(model, config, params, monkeypatch, False)[:2]
    )


def test_what_is_read_is_committed_and_the_last_token_is_not(model):
    decoder = model.decoder
    cache = decoder.new_cache()
    slots = [cache.open(64), cache.open(64)]
    draws = [[Draw(0, Warp(), 0)] * 3, [Draw(0, Warp(), 0)] * 5]
    drafted = decoder.draft_chains(Chains([3, 9], draws, slots=slots), cache)
    assert [len(chain) for chain in drafted] == [3, 5]
    assert [cache.length(slot) for slot in slots] == [3, 5]
    assert all(0 < step.top_probs[0] <= 1 for chain in drafted for step in chain)
    assert all(step.top_ids == [step.token_id] for chain in drafted for step in chain)
    alone = cache.open(64)
    assert decoder.draft_chains(Chains([9], draws[1:], slots=[alone]), cache) == drafted[1:]


@pytest.mark.parametrize(
    ("chains", "reason"),
    [
        (Chains([1, 2], [[Draw(0, Warp(), 0)]], slots=[0]), "differ in length"),
        (Chains([1], [[Draw(0, Warp(), 0)]], slots=[0], carries="stream"), "begins as an input"),
        (Chains([1], [[Draw(0, Warp(), 0)]], slots=[0], carries="thoughts"), "allowed: nothing, stream, hidden"),
    ],
)
def test_chains_that_do_not_fit_are_refused(model, chains, reason):
    cache = model.decoder.new_cache()
    cache.open(16)
    with pytest.raises(KernelError, match=reason):
        model.decoder.draft_chains(chains, cache)


@pytest.mark.parametrize("shape", [{"allowed_token_ids": (8,)}, {"logit_bias": {8: 120.0}}, {}], ids=str)
def test_a_comb_keeps_guesses_that_stand_alone(shape, files, model, monkeypatch):
    """Where a request leaves one candidate it is as good a guess as in a full tree."""
    params = SamplingParams(max_tokens=24, ignore_eos=True, **shape)
    config = config_of("comb", files, 6)
    accepted = []
    for are_combs in (True, False):
        with monkeypatch.context() as patch:
            if not are_combs:
                patch.setattr(Autoregression, "_are_combs", lambda *_: False)
            (result,) = LLM(model, config, policy="fixed").generate([PROMPTS[0]], params)
        accepted.append(result.stats.accepted_tokens)
    if shape:
        assert accepted == [19, 19]
    assert accepted[0] >= 0.9 * accepted[1]
