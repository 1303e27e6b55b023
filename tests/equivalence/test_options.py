"""Every sampling option under speculation gives the tokens of plain decoding, exactly: chains, trees, batches."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from foreword.draft.lookup.ngram import NgramDrafter
from foreword.sampling.params import SamplingParams
from tests.support.option_oracle import ConstDecoder, plain_answer
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, run

EOS = 6
PROMPTS = PROMPTS[:3]
DRAFTERS = ["always-right-4", "always-wrong-4", "right-until-2", "bursts", "bushy", "ngram"]
DRAWS = {
    "greedy": {},
    "sampled": {"temperature": 1.2, "top_k": 8, "top_p": 0.95, "min_p": 0.01, "seed": 8},
}


def ban_at_nine(token_ids, logits):
    """A user's processor: only tokens from 7 on may stand at absolute position 9 [R40]."""
    if len(token_ids) == 9:
        logits[:7] = float("-inf")
    return logits


def force_after_three(token_ids, logits):
    """A user's processor: token 4 always follows token 3 [R40]."""
    if token_ids[-1] == 3:
        forced = torch.full_like(logits, float("-inf"))
        forced[4] = 0.0
        return forced
    return logits


class BudgetOfSevens:
    """Stateful: sevens become likelier, but less so with each one there was; counts in place [R36]."""

    def __init__(self, counts=None):
        self.counts = counts or {"all": 0, "sevens": 0}

    def clone(self):
        return BudgetOfSevens(dict(self.counts))

    def accept(self, token_id):
        self.counts["all"] += 1
        self.counts["sevens"] += token_id == 7

    def __call__(self, token_ids, logits):
        assert self.counts["all"] <= len(token_ids)
        logits[7] += 0.5 * self.counts["all"] - 2.0 * self.counts["sevens"]
        return logits


def plain_ban_at_nine(tokens, new, row):
    if len(tokens) == 9:
        row[:7] = -float("inf")


def plain_force_after_three(tokens, new, row):
    if tokens[-1] == 3:
        row[[t for t in range(len(row)) if t != 4]] = -float("inf")
        row[4] = 0.0


def plain_budget_of_sevens(tokens, new, row):
    row[7] += 0.5 * len(new) - 2.0 * new.count(7)


BAD_WORDS = ((1,), (5, 2), (3, 3, 3), (2, 0))
OPTIONS = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.4},
    "negative-frequency": {"frequency_penalty": -0.3, "presence_penalty": -0.1},
    "bias": {"logit_bias": {0: 4.0, 5: -100.0, 7: 1.5}},
    "allowed": {"allowed_token_ids": (0, 2, 3, 5, 7, 11)},
    "bad-words": {"bad_words": BAD_WORDS},
    "min-tokens": {"min_tokens": 9, "logit_bias": {EOS: 6.0}},
    "stop-ids": {"stop_token_ids": (4, 9), "min_tokens": 3},
    "ignore-eos": {"ignore_eos": True, "logit_bias": {EOS: 3.0}},
    "all": {
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {3: 1.0, 9: -2.0},
        "allowed_token_ids": tuple(range(11)), "bad_words": BAD_WORDS, "min_tokens": 5,
    },
}  # fmt: skip
PROCESSORS = {
    "ban-at-nine": ((ban_at_nine,), (plain_ban_at_nine,)),
    "force-after-three": ((force_after_three,), (plain_force_after_three,)),
    "stateful": ((BudgetOfSevens(),), (plain_budget_of_sevens,)),
    "several": ((BudgetOfSevens(), ban_at_nine), (plain_budget_of_sevens, plain_ban_at_nine)),
}


@cache
def toy() -> ToyDecoder:
    return ToyDecoder(seed=2, sharpness=1.5)


@cache
def _plain(decoder, prompt: tuple, params: SamplingParams, processors: tuple):
    return plain_answer(decoder, prompt, params, eos=(EOS,), processors=processors)


def plain_ids(prompt, params: SamplingParams, processors=()) -> list[int]:
    return _plain(toy(), tuple(prompt), params, tuple(processors)).token_ids


def check(params: SamplingParams, drafter: str, batch_size: int, decoder=None, processors=()) -> list:
    decoder = decoder or toy()
    plain = [_plain(decoder, tuple(p), params, tuple(processors)) for p in PROMPTS]
    # Drafts go on past the end of an answer, as real ones do.
    free = replace(params, stop_token_ids=(), ignore_eos=True, max_tokens=40)
    endless = {tuple(p): list(_plain(decoder, tuple(p), free, tuple(processors)).token_ids) for p in PROMPTS}
    for prompt, answer in zip(PROMPTS, plain, strict=True):
        endless[tuple(prompt)][: len(answer.token_ids)] = answer.token_ids
    drafter_ = (
        NgramDrafter()
        if drafter == "ngram"
        else ScriptedDrafter(drafter, SCRIPTS[drafter], endless, decoder.spec.vocab_size)
    )
    engine = make_engine(decoder, drafter_, batch_size=batch_size, num_nodes=48)
    requests = run(engine, PROMPTS, [params] * len(PROMPTS), eos=(EOS,))
    for request, answer in zip(requests, plain, strict=True):
        assert request.new_ids == answer.token_ids
        assert request.finish_reason == answer.finish_reason
        assert request.stats.new_tokens == len(answer.token_ids)
        assert request.stats.accepted_tokens <= request.stats.drafted_tokens
    return requests


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_gives_the_tokens_of_plain_decoding(options, drafter):
    check(SamplingParams(max_tokens=16, **DRAWS["greedy"], **OPTIONS[options]), drafter, batch_size=3)
    if drafter in ("bursts", "bushy", "ngram"):  # right, wrong and none in one run
        check(SamplingParams(max_tokens=12, **DRAWS["sampled"], **OPTIONS[options]), drafter, batch_size=1)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("processors", PROCESSORS)
def test_a_users_processor_gives_the_tokens_of_plain_decoding(processors, drafter):
    ours, plain = PROCESSORS[processors]
    for draws, batch_size in ((DRAWS["greedy"], 3), (DRAWS["sampled"], 1)):
        params = SamplingParams(max_tokens=12, logits_processors=ours, **draws)
        check(params, drafter, batch_size, processors=plain)


@pytest.mark.parametrize("name", [*OPTIONS, *PROCESSORS])
def test_each_option_does_something(name):
    """An option that changed nothing would make the tests above say nothing."""
    options, plain = OPTIONS.get(name, {}), PROCESSORS.get(name, ((), ()))[1]
    changes = [
        plain_ids(p, SamplingParams(max_tokens=20, **draws, **options), plain)
        != plain_ids(p, SamplingParams(max_tokens=20, **draws))
        for draws in DRAWS.values()
        for p in PROMPTS
    ]
    assert sum(changes) >= 2


def test_options_of_one_request_do_not_touch_its_neighbours():
    options = [*OPTIONS.values(), {}]
    params = [SamplingParams(max_tokens=20, temperature=0.8, seed=i, **o) for i, o in enumerate(options)]
    prompts = [PROMPTS[i % 3] for i in range(len(params))]
    engine = make_engine(toy(), NgramDrafter(), batch_size=5)
    for request, prompt, p in zip(run(engine, prompts, params, eos=(EOS,)), prompts, params, strict=True):
        assert request.new_ids == plain_answer(toy(), prompt, p, eos=(EOS,)).token_ids


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_samples_of_one_seed(drafter):
    """Sample 0 uses the seed itself; the others have noise of their own, whatever is drafted."""
    from foreword.engine.request import Request

    params = SamplingParams(max_tokens=20, temperature=1.0, seed=5, n=3)
    prompt = PROMPTS[0]
    plain = [plain_answer(toy(), prompt, params, sample_index=i).token_ids for i in range(3)]
    assert plain[0] == plain_answer(toy(), prompt, replace(params, n=1)).token_ids
    assert len({tuple(p) for p in plain}) == 3
    script = NgramDrafter()
    if drafter != "ngram":
        script = ScriptedDrafter(drafter, SCRIPTS[drafter], {tuple(prompt): plain[1]}, 12)
    engine = make_engine(toy(), script, batch_size=3)
    requests = [Request(list(prompt), params, context_len=4096, sample_index=i) for i in range(3)]
    for request in requests:
        engine.add(request)
    while engine.step() is not None:
        pass
    assert [r.new_ids for r in requests] == plain


LETTERS = "ABCDE"
CONST = (3.0, 2.7, 2.45, 2.2, 1.0)
TIE_FREE = (3.0, 2.7, 2.45, 2.15, 1.0)
STRINGS = [  # [R35], [R37]: known by hand
    (CONST, {"frequency_penalty": 0.4}, "ABACBADCBDAC"),
    (TIE_FREE, {"frequency_penalty": 0.4}, "ABACBADCBADC"),
    (CONST, {"presence_penalty": 0.5}, "ABAAAAAAAAAA"),
    (TIE_FREE, {"presence_penalty": 0.5}, "ABAAAAAAAAAA"),
]


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
@pytest.mark.parametrize(("logits", "options", "expected"), STRINGS)
def test_penalty_strings_known_by_hand(logits, options, expected, drafter):
    answer = [LETTERS.index(c) for c in expected]
    for k in (1, 2, 3, 4, 8):
        script = None if drafter == "none" else NgramDrafter()
        if drafter not in ("none", "ngram"):
            script = ScriptedDrafter(drafter, SCRIPTS[drafter], {(4,): answer}, 5)
        engine = make_engine(ConstDecoder(logits), script, num_nodes=k)
        (request,) = run(engine, [[4]], [SamplingParams(max_tokens=12, **options)])
        assert "".join(LETTERS[t] for t in request.new_ids) == expected


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
def test_repetition_counts_prompt_and_answer(drafter):
    """1.3: A falls to 2.31, B to 2.08, C to 1.88, so ABC, then A for good. With A and B in the prompt: C, then A."""
    for prompt, expected in ([4], "ABCAAAAAAAAA"), ([4, 0, 1], "CAAAAAAAAAAA"):
        answer = [LETTERS.index(c) for c in expected]
        script = None if drafter == "none" else NgramDrafter()
        if drafter not in ("none", "ngram"):
            script = ScriptedDrafter(drafter, SCRIPTS[drafter], {tuple(prompt): answer}, 5)
        engine = make_engine(ConstDecoder(CONST), script)
        (request,) = run(engine, [prompt], [SamplingParams(max_tokens=12, repetition_penalty=1.3)])
        assert "".join(LETTERS[t] for t in request.new_ids) == expected


@pytest.mark.parametrize("bias", [-100.0, 100.0])
@pytest.mark.parametrize("drafter", ["always-right-4", "always-wrong-4", "bushy"])
def test_a_bias_of_a_hundred_is_never_or_always(drafter, bias):
    """[R38], [R39]: A is what greedy would say everywhere; accepted and rejected drafts alike."""
    answer = [0] * 20 if bias > 0 else [1] * 20
    drafter_ = ScriptedDrafter(drafter, SCRIPTS[drafter], {(4,): [0] * 20}, 5)
    (request,) = run(
        make_engine(ConstDecoder(CONST), drafter_), [[4]], [SamplingParams(max_tokens=20, logit_bias={0: bias})]
    )
    assert request.new_ids == answer


@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_min_tokens_counts_tokens_not_steps(k):
    """[R23]: the target wants the end everywhere; with min_tokens 5 it comes as the 6th token."""
    decoder = ConstDecoder((1.0, 5.0, 0.5))
    drafter = ScriptedDrafter("oracle", lambda answer, step, vocab: answer[:k], {(2,): [0] * 5 + [1] * 20}, 3)
    engine = make_engine(decoder, drafter, num_nodes=k)
    (request,) = run(engine, [[2]], [SamplingParams(max_tokens=20, min_tokens=5)], eos=(1,))
    assert request.new_ids == [0] * 5 + [1]
    assert request.finish_reason == "stop"


def test_a_stateful_processor_is_told_of_each_token_once():
    """[R36]: wherever it is called, its count is the number of tokens before; the object given stays as it was."""
    seen = []

    class Counter:
        def __init__(self, count=None):
            self.count = count or [0]

        def clone(self):
            return Counter(list(self.count))

        def accept(self, token_id):
            self.count[0] += 1

        def __call__(self, token_ids, logits):
            seen.append((len(token_ids) - 3, self.count[0]))
            self.count[0] += 1000  # what a call changes is lost
            return logits

    counter = Counter()
    answer = plain_answer(toy(), PROMPTS[0], SamplingParams(max_tokens=30)).token_ids
    for name in DRAFTERS[:-1]:
        drafter = ScriptedDrafter(name, SCRIPTS[name], {tuple(PROMPTS[0]): answer}, 12)
        params = SamplingParams(max_tokens=30, logits_processors=(counter,))
        (request,) = run(make_engine(toy(), drafter, num_nodes=48), PROMPTS[:1], [params])
        assert request.new_ids == answer
    assert seen
    assert all(place == count for place, count in seen)
    assert counter.count == [0]
