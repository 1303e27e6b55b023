"""Every drafter, every way of drawing, alone and in a batch: the tokens of plain decoding, exactly."""

from dataclasses import replace

import pytest

from foreword.engine.fixed_policy import FixedController
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from tests.support.drafters import DRAFTERS, Checked, by_name, model_drafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import GREEDY, PROMPTS, SAMPLED, TRUNCATED, make_engine, plain_tokens, run

OPTIONS = {"greedy": GREEDY, "sampled": SAMPLED, "truncated": TRUNCATED}
OPTIONS = {name: {**options, "max_tokens": 18} for name, options in OPTIONS.items()}
DECODER = ToyDecoder(num_layers=2)


def engine_with(make, **options):
    target = Target(DECODER)
    drafter = Checked(make(target))
    return make_engine(DECODER, drafter, target=target, **options), drafter


CASES = [("greedy", 3), ("sampled", 1), ("truncated", 3)]  # test_combinations has every pair on a real model


@pytest.mark.parametrize(("options", "batch_size"), CASES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_tokens_are_those_of_plain_decoding(name, options, batch_size):
    params = SamplingParams(**OPTIONS[options])
    engine, drafter = engine_with(DRAFTERS[name], batch_size=batch_size, num_nodes=12)
    for request in run(engine, PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], params)
    assert drafter.num_drafted > 0, "a drafter that never drafts proves nothing"


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
@pytest.mark.parametrize("name", DRAFTERS)
def test_small_plans_are_obeyed(name, num_nodes):
    params = [SamplingParams(max_tokens=n) for n in (0, 1, 2, 3, 17)]
    engine, _ = engine_with(DRAFTERS[name], num_nodes=num_nodes)
    for request, prompt, options in zip(run(engine, PROMPTS, params), PROMPTS, params, strict=True):
        assert request.new_ids == plain_tokens(DECODER, prompt, options)


class Switching(FixedController):
    """On and off again, each request by its own rhythm."""

    rhythm = (3, 0, 5, 0, 0, 1, 12, 0, 2)

    def plan(self, requests):
        step = sum(len(r.token_ids) for r in requests)
        plans = super().plan(requests)
        for i, request in enumerate(requests):
            self.num_nodes = self.rhythm[(step + request.request_id) % len(self.rhythm)]
            plans[i] = super().plan([request])[0]
        return plans


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafting_may_be_switched_off_and_on(name):
    """[R05], [R28], [R64]: steps without drafts between accepted ones leave nothing stale."""
    params = SamplingParams(**OPTIONS["sampled"])
    engine, drafter = engine_with(DRAFTERS[name], batch_size=3)
    engine.parts = replace(engine.parts, controller=Switching(0, "test", 4))
    for request in run(engine, PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], params)
    assert drafter.num_drafted > 0


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_same_call_five_times_is_the_same_answer(name):
    """[R16], [R31]: whatever a drafter remembers of requests before, a long one first."""
    params = SamplingParams(**OPTIONS["greedy"])
    engine, _ = engine_with(DRAFTERS[name])
    run(engine, [PROMPTS[3] * 10], [params])
    for _ in range(5):
        (request,) = run(engine, PROMPTS[:1], [params])
        assert request.new_ids == plain_tokens(DECODER, PROMPTS[0], params)


@pytest.mark.parametrize(
    "make",
    [by_name("suffix"), by_name({"method": "recycling", "recycling_per_request": True}), by_name("lookahead"),
     by_name({"method": "layerskip", "exit_layer": 1}), model_drafter()],
    ids=["suffix", "recycling-per-request", "lookahead", "layerskip", "draft_model"],
)  # fmt: skip
def test_what_one_request_costs_does_not_depend_on_others(make):
    """[R17]: with state per request, steps and accepted tokens are those of a fresh engine."""
    params = SamplingParams(**OPTIONS["greedy"])
    used, _ = engine_with(make)
    run(used, PROMPTS, [params] * len(PROMPTS))
    fresh, _ = engine_with(make)
    (again,), (first,) = run(used, PROMPTS[1:2], [params]), run(fresh, PROMPTS[1:2], [params])
    assert (again.stats.num_steps, again.stats.accepted_tokens) == (first.stats.num_steps, first.stats.accepted_tokens)


@pytest.mark.parametrize("name", DRAFTERS)
def test_an_aborted_request_leaves_nothing_behind(name):
    from foreword.engine.request import Request

    engine, _ = engine_with(DRAFTERS[name])
    request = Request(list(PROMPTS[1]), SamplingParams(**OPTIONS["greedy"]), context_len=4096)
    engine.add(request)
    for _ in range(5):
        engine.step()
    engine.abort(request)
    params = SamplingParams(**OPTIONS["sampled"])
    (after,) = run(engine, PROMPTS[1:2], [params])
    assert after.new_ids == plain_tokens(DECODER, PROMPTS[1], params)
