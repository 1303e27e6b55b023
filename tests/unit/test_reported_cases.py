"""What users of other libraries reported, where no other test is of its kind (tests/unit/test_reports.py has the list)."""

import gc
import math
import weakref
from types import SimpleNamespace

import pytest
import torch

from foreword.draft.draft_config import draft_config
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.make_drafter import make_drafter
from foreword.draft.model.draft_model import DraftModelOptions, ModelDrafter
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.errors import ForewordError, PromptTooLongError
from foreword.sampling.params import SamplingParams
from foreword.target.hf_load import adopt_model
from foreword.target.target import Target
from foreword.verify.base import make_verifier
from tests.support.drafters import model_drafter
from tests.support.hf_models import ACCEPTED, WINDOW, random_model
from tests.support.scripted_drafters import ScriptedDrafter, wrong
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, SAMPLED, make_engine, plain_tokens, run
from tests.support.toy_llm import ScriptDecoder, byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TOKENIZER = byte_tokenizer('{"name": "', '", "', '": ', "get_")
SCHEMA = '{"name": "get_weather", "args": {"city": "Rome"}} {"name": "get_whether", "args": {"cite": "Rome"}} '


@pytest.mark.parametrize("shortest", [1, 2, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_near_misses_of_a_tool_call_change_no_token(shortest, temperature):
    """[R04]: tool calls that repeat themselves nearly; short matches mislead a drafter and nobody else."""
    prompt = TOKENIZER.encode(SCHEMA * 3 + '{"name": "get_w')
    answer = TOKENIZER.encode('hether", "args": {"city": "Rome"}} {"name": "get_weather", "args": {"cite": "Roma"}} ')
    decoder = ScriptDecoder(answer, TOKENIZER.vocab_size, prompt_len=len(prompt))
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=3)
    config = {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": 8, "num_speculative_tokens": 8}
    (result,) = LLM(toy_llm(decoder, TOKENIZER).model, config).generate([prompt], params)
    assert result.token_ids == plain_tokens(decoder, prompt, params)
    assert result.stats.drafted_tokens > result.stats.accepted_tokens > 0


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_rows_that_accept_differently_share_a_batch(options):
    """[R27]: prompts of 3, 17 and 40 tokens; at each step one row accepts 0, one 2 and one 4 of 4 drafts."""
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=30, **options)
    prompts = [[i % 12 for i in range(n)] for n in (3, 17, 40)]
    answers = {tuple(p): plain_tokens(decoder, p, params) for p in prompts}
    good = dict(zip(map(tuple, answers.values()), (0, 2, 4), strict=True))

    def script(answer, step, vocab):
        right = next(n for whole, n in good.items() if list(whole[len(whole) - len(answer) :]) == list(answer))
        return [t if i < right else wrong(t, vocab) for i, t in enumerate(answer[:4])]

    drafter = ScriptedDrafter("mixed", script, answers, 12)
    requests = run(make_engine(decoder, drafter, batch_size=3), prompts, [params] * 3)
    assert [r.new_ids for r in requests] == list(answers.values())
    rates = [r.stats.tokens_per_step for r in requests]
    assert rates[0] == 1.0
    assert rates[0] < rates[1] < rates[2]


def test_copies_and_strangers_share_a_batch():
    """[R32]: sixteen prompts, every other one a copy task full of matches, the rest without any."""
    decoder = ToyDecoder(vocab_size=40)
    prompts = [[i, i + 1, i + 2] * 8 if i % 2 else [(7 * i + j * j) % 40 for j in range(1 + i)] for i in range(16)]
    params = [SamplingParams(max_tokens=16, temperature=0.7 * (i % 3 == 0), seed=i) for i in range(16)]
    engine = make_engine(decoder, NgramDrafter(), batch_size=16)
    requests = run(engine, prompts, params)
    for request, prompt, options in zip(requests, prompts, params, strict=True):
        assert request.new_ids == plain_tokens(decoder, prompt, options)
    assert len({r.stats.drafted_tokens for r in requests}) > 2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_prompts_as_long_as_the_window_and_nearly(attention):
    """[R29], [R58]: lengths around the window, rejected drafts in between, the text grows across it."""
    loaded = adopt_model(random_model(ACCEPTED["mistral"](), attn_implementation=attention), byte_tokenizer(" the"))
    prompts = [[5, 9, 40, 7] * 5][:1] * 5
    prompts = [prompt[: WINDOW + d] for prompt, d in zip(prompts, (-2, -1, 0, 1, 2), strict=True)]
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    plain = LLM(loaded, "none", batch_size=1).generate(prompts, params)
    drafted = LLM(loaded, {"method": "recycling", "num_speculative_tokens": 4}, batch_size=5).generate(prompts, params)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    drafts, accepted = (sum(getattr(r.stats, n) for r in drafted) for n in ("drafted_tokens", "accepted_tokens"))
    assert drafts > accepted


@pytest.mark.parametrize("name", ["ngram", "suffix", "recycling"])
def test_no_limit_means_up_to_the_context_end(name):
    """[R57]: prompts of L - k - 1 to L tokens, max_tokens not given; no room is taken for drafts."""
    decoder, k = ToyDecoder(context_len=32), 4
    llm = LLM(toy_llm(decoder, byte_tokenizer()).model, {"method": name, "num_speculative_tokens": k})
    for length in range(32 - k - 1, 32):
        prompt = [1 + i % 3 for i in range(length)]
        (result,) = llm.generate([prompt], SamplingParams(ignore_eos=True))
        assert result.finish_reason == "length"
        assert result.token_ids == plain_tokens(decoder, prompt, SamplingParams(max_tokens=99))
        assert len(result.token_ids) == 32 - length
    with pytest.raises(PromptTooLongError):
        llm.generate([[1] * 32])


@pytest.mark.parametrize("ends_early", [False, True])
def test_five_requests_of_the_greatest_length_cost_what_one_costs(ends_early):
    """[R68], [R70]: the draft model's rows and the target's are given back, by answers that end and by readers that leave."""
    decoder, params = ToyDecoder(context_len=48), SamplingParams(max_tokens=99)
    target = Target(decoder)
    drafter = model_drafter(0.0)(target)
    engine = make_engine(decoder, drafter, target=target, num_nodes=3, batch_size=1)
    counts = set()
    for _ in range(5):
        if ends_early:
            left = Request(list(PROMPTS[3]), params, context_len=48)
            engine.add(left)
            for _ in range(6):
                engine.step()
            engine.abort(left)
        (request,) = run(engine, [PROMPTS[0]], [params])
        assert len(request.token_ids) == 48
        counts.add((request.stats.num_steps, request.stats.accepted_tokens))
        assert drafter.follower.cache.num_open == target.cache.num_open == 0
    assert len(counts) == 1


def test_a_requests_counts_add_up_to_the_engines():
    """[R89]: nothing is reset in between; prefill passes are counted by the engine alone."""
    decoder, params = ToyDecoder(), SamplingParams(**SAMPLED)
    engine = make_engine(decoder, NgramDrafter(), batch_size=1, prefill_chunk=4)
    num_passes = []
    for _ in range(2):
        requests = run(engine, PROMPTS, [params] * len(PROMPTS))
        expected = sum(r.stats.num_steps + math.ceil(len(p) / 4) for r, p in zip(requests, PROMPTS, strict=True))
        num_passes.append(expected)
        assert engine.stats.num_steps == sum(num_passes)
    assert num_passes[0] == num_passes[1]


def test_training_keeps_numbers_of_its_losses_and_no_graphs():
    """[R71]: what is shown of a step does not hold on to the step's tensors."""
    from foreword.train.loop.training_loop import Trainer

    loop = object.__new__(Trainer)
    loop.progress = SimpleNamespace(step=3, elapsed_s=1.0)
    loop._shown, loop._share, loop._epoch = [], lambda: 0.5, lambda: 0.1
    weight = torch.ones(3, requires_grad=True)
    kept = []
    for _ in range(3):
        loss = (weight * 2).sum()
        graph = weakref.ref(loss)
        kept.append(loop._status(SimpleNamespace(loss=loss, accuracy=[0.5]), 1.0, None))
        del loss
        gc.collect()
        assert graph() is None
    assert all(type(value) is float for value in loop._shown)


def test_past_answers_are_forgotten_between_requests_unless_asked_for():
    """[R66]: a prompt asked twice drafts as it did the first time, so that repeats flatter no benchmark."""
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=24)
    for name in ("ngram", "suffix"):
        engine = make_engine(decoder, make_drafter(draft_config(name), Target(decoder)), batch_size=1)
        (first,), (second,) = (run(engine, PROMPTS[1:2], [params]) for _ in range(2))
        assert (first.stats.num_steps, first.stats.drafted_tokens) == (
            second.stats.num_steps,
            second.stats.drafted_tokens,
        )


class Damaged(ToyDecoder):
    """Its weights are not numbers."""

    def logits_after(self, tokens, position):
        return torch.full((self.spec.vocab_size,), math.nan)


@pytest.mark.parametrize("rule", ["match", "rejection", "block", "typical"])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.1}], ids=["plain", "shaped"])
def test_a_damaged_draft_model_drafts_nothing_whatever_the_rule(rule, options, caplog):
    """[R59]: a draft distribution that is no numbers would let *rejection* keep whatever stands there."""
    decoder, params = ToyDecoder(), SamplingParams(**{**SAMPLED, **options, "max_tokens": 12})
    verifier = make_verifier(rule)
    drafter = ModelDrafter(Damaged(), 12, DraftModelOptions(), draft_mode=verifier.draft_mode)
    (drafted,) = run(make_engine(decoder, drafter, verifier=verifier, num_nodes=4), PROMPTS[:1], [params])
    (plain,) = run(make_engine(decoder, verifier=verifier), PROMPTS[:1], [params])
    assert drafted.new_ids == plain.new_ids
    assert drafted.stats.drafted_tokens == 0
    assert caplog.text.count("weights are damaged") == 1


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_draft_model_without_any_allowed_token_drafts_nothing_and_is_not_called_damaged(rule, caplog):
    """A smaller vocabulary, and a request (as a grammar may) that allows only tokens beyond it."""
    decoder, verifier = ToyDecoder(), make_verifier(rule)
    params = SamplingParams(**{**SAMPLED, "max_tokens": 12}, allowed_token_ids=(9, 10, 11))
    drafter = ModelDrafter(ToyDecoder(vocab_size=9, seed=3), 12, DraftModelOptions(), draft_mode=verifier.draft_mode)
    (request,) = run(make_engine(decoder, drafter, verifier=verifier, num_nodes=4), PROMPTS[:1], [params])
    (plain,) = run(make_engine(decoder, verifier=verifier), PROMPTS[:1], [params])
    assert request.new_ids == plain.new_ids
    assert request.stats.drafted_tokens == 0
    assert caplog.text == ""


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("rule", ["match", "rejection", "block", "typical"])
@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {}, {"repetition_penalty": 1.1}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}],
    ids=["greedy", "sampled", "shaped", "top-p", "top-k"],
)
def test_a_target_whose_scores_are_no_numbers_ends_the_request_with_the_reason(rule, options, value):
    """[R61]: it would say the same token for ever."""

    class Overflowing(ToyDecoder):
        """From its fourth token on."""

        def logits_after(self, tokens, position):
            row = super().logits_after(tokens, position).clone()
            if position >= len(PROMPTS[0]) + 3:
                row[5] = value
            return row

    params = SamplingParams(**{**SAMPLED, **options, "max_tokens": 12})
    engine = make_engine(Overflowing(), verifier=make_verifier(rule))
    with pytest.raises(ForewordError, match="not numbers|the highest logit is"):
        run(engine, PROMPTS[:1], [params])
    assert engine.running == []
