"""The drafter `memory`: what it learns from whom, and that a stream of requests says the same with it and without it."""

import json
import random

import pytest

from foreword import LLM, ConfigError, DraftConfig, DraftingParams, SamplingParams
from foreword.cli.main import main
from foreword.cli.options import draft_options
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.memory.drafter import MemoryDrafter
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.store import LEAST_BYTES, context_hashes
from foreword.sampling.grammar import Grammar
from tests.support.ngram_tables import table_of_texts
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, SAMPLED, make_engine, plain_tokens, run

pytestmark = pytest.mark.usefixtures("own_cache")

DECODER = ToyDecoder(num_layers=2)
SMALL = {"memory_bytes": LEAST_BYTES}


def drafter(table=None) -> MemoryDrafter:
    return MemoryDrafter(Memory(LEAST_BYTES, DECODER.spec.vocab_size), table)


def drafter_of(llm: LLM) -> MemoryDrafter:
    found = llm.engine.parts.drafter
    assert isinstance(found, MemoryDrafter)
    return found


def stream(files, seed: int = 1, num: int = 8):
    """Requests of two kinds, their options as mixed as may be, some kept out."""
    rng, requests = random.Random(seed), []
    for index in range(num):
        prompt = [*([5, 6, 7] if index % 2 else [9, 8, 9]), *(rng.randrange(20) for _ in range(3))]
        options = [{}, {"temperature": 0.8, "seed": index}, {"grammar": Grammar.regex("[a-d ]{3,20}")},
                   {"n": 3, "temperature": 1.0, "seed": 7}, {"repetition_penalty": 1.3}][index % 5]  # fmt: skip
        requests.append((prompt, SamplingParams(max_tokens=10, **options), DraftingParams(remember=index % 4 != 3)))
    return requests


@pytest.mark.parametrize("method", [{"method": "memory", **SMALL}, {"method": "auto", **SMALL}, {"method": "memory,ngram"}],
                         ids=["memory", "auto", "cascade"])  # fmt: skip
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_stream_of_requests_says_the_same_with_memory_and_without(model, files, method, batch_size):
    requests = stream(files)
    plain, drafted = (
        LLM(model, "none", batch_size=batch_size),
        LLM(model, method, policy="fixed", batch_size=batch_size),
    )
    step = batch_size * 2
    num_drafted = 0
    for _ in range(2):  # the second time nearly all of it is remembered
        for first in range(0, len(requests), step):
            prompts, params, drafting = zip(*requests[first : first + step], strict=True)
            expected = plain.generate(list(prompts), list(params))
            found = drafted.generate(list(prompts), list(params), drafting=list(drafting))
            assert [result.token_ids for result in found] == [result.token_ids for result in expected]
            num_drafted += sum(result.stats.drafted_tokens for result in found)
    assert num_drafted > 0


def test_what_was_answered_once_is_drafted_the_next_time():
    engine, params = make_engine(DECODER, drafter(), num_nodes=8), [SamplingParams(**SAMPLED)]
    steps, sources = [], {}
    for _ in range(3):
        (request,) = run(engine, [PROMPTS[1]], params)
        assert request.new_ids == plain_tokens(DECODER, PROMPTS[1], params[0])
        steps.append(request.stats.num_steps)
        sources = request.stats.accepted_tokens_by
    assert steps[-1] < 0.6 * steps[0]
    assert sources["memory"] > 0


def test_a_request_may_stay_out_of_it_and_still_read_it():
    made = drafter()
    engine, params = make_engine(DECODER, made, num_nodes=8), SamplingParams(**SAMPLED)
    out = DraftingParams(remember=False)
    untouched = made.memory.mixer.state.tolist()

    def ask(drafting):
        from foreword.engine.request import Request

        request = Request(list(PROMPTS[1]), params, context_len=4096, drafting=drafting)
        engine.add(request)
        while not request.is_finished:
            engine.step()
        return request.stats.num_steps

    first = [ask(out) for _ in range(3)]
    assert made.memory.store.num_contexts == 0
    assert made.memory.mixer.state.tolist() == untouched
    assert len(set(first)) == 1
    ask(None)
    assert ask(None) < first[0]
    assert ask(out) < first[0]


def test_prompts_are_context_and_not_learned():
    made = drafter()
    prompt = [3, 1, 3, 1, 2, 2, 1, 0]
    (request,) = run(make_engine(DECODER, made, num_nodes=4), [prompt], [SamplingParams(max_tokens=3)])
    assert made.memory.store.num_contexts == 3 * 4
    for length in range(2, 6):
        found = made.memory.store.after(context_hashes(prompt[-length:])[-1])
        assert [token for token, _ in found] == request.new_ids[:1]


def test_every_token_of_an_answer_is_learned_once(monkeypatch):
    """However the request ends, in a batch, with and without drafts."""
    made, learned = drafter(), []
    monkeypatch.setattr(made.memory.store, "learn", lambda ids, first: learned.append(list(ids[first:])))
    engine = make_engine(DECODER, made, num_nodes=4, batch_size=3)
    requests = run(engine, PROMPTS, [SamplingParams(max_tokens=n) for n in (1, 15, 16, 17, 40)])
    assert sorted(sum(learned, [])) == sorted(sum((request.new_ids for request in requests), []))
    assert made._states == {}


def test_all_sources_are_weighed_and_named():
    """A table that knows what comes is drafted from before anything was learned."""
    plain = plain_tokens(DECODER, PROMPTS[0], SamplingParams(**SAMPLED))
    made = drafter(table_of_texts([[*PROMPTS[0], *plain]] * 5, 3, DECODER.spec.vocab_size))
    (request,) = run(make_engine(DECODER, made, num_nodes=8), PROMPTS[:1], [SamplingParams(**SAMPLED)])
    assert request.new_ids == plain
    assert request.stats.accepted_tokens_by["ngram_lm"] > 0
    assert set(request.stats.drafted_tokens_by) <= {"memory", "suffix", "ngram_lm"}


def test_a_reference_is_drafted_from():
    from foreword.engine.request import Request

    params = SamplingParams(**SAMPLED)
    plain = plain_tokens(DECODER, PROMPTS[2], params)
    steps = []
    for reference in (None, plain):
        engine = make_engine(DECODER, drafter(), num_nodes=8)
        drafting = DraftingParams(reference=reference, remember=False)
        request = Request(list(PROMPTS[2]), params, context_len=4096, drafting=drafting)
        engine.add(request)
        while not request.is_finished:
            engine.step()
        steps.append(request.stats.num_steps)
    assert steps[1] < steps[0]


def test_trees_are_sound_and_stay_within_the_plan():
    from types import SimpleNamespace

    from foreword.draft.base import Plan

    made, rng = drafter(), random.Random(5)
    for index in range(30):
        ids = [rng.randrange(6) for _ in range(40)]
        request = SimpleNamespace(
            request_id=index, token_ids=ids, prompt_len=10, kv_len=39, reference_ids=(), is_remembered=True
        )
        made.start(request)
        for _ in range(8):
            plan = Plan(1, rng.randint(0, 12), rng.randint(0, 5))
            (tree,) = made.propose([request], [plan])
            tree.check(DECODER.spec.vocab_size)
            assert tree.num_drafted <= plan.num_nodes
            assert max(tree.depths) <= plan.depth
            probs = tree.accept_probs or []
            assert all(probs[node] <= probs[parent] for node, parent in enumerate(tree.parents) if parent >= 0)
            ids += [rng.randrange(6) for _ in range(rng.randint(1, 3))]
            request.kv_len = len(ids) - 1
        made.stop(request)


def test_a_file_is_written_when_the_engine_is_closed_and_read_by_the_next(model, tmp_path):
    config = {"method": "memory", "memory_file": str(tmp_path / "a.memory"), **SMALL}
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    with LLM(model, config) as llm:
        first = llm.generate([[5, 6, 7]], params)[0]
        assert not (tmp_path / "a.memory").exists()
    with LLM(model, config) as llm:
        again = llm.generate([[5, 6, 7]], params)[0]
    assert again.token_ids == first.token_ids
    assert again.stats.num_steps < first.stats.num_steps


def test_by_default_nothing_is_kept_beyond_the_process(model, tmp_path):
    for drafter_name in ("auto", "memory"):
        with LLM(model, drafter_name) as llm:
            llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))
    assert not (tmp_path / "cache" / "memory").exists()


def test_remembered_is_in_the_cache_folder_a_file_a_model(model, tmp_path):
    for drafter_name in ("auto", "memory", "memory,ngram"):
        with LLM(model, {"method": drafter_name, "memory_remember": True, **SMALL}) as llm:
            llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))
    assert len(list((tmp_path / "cache" / "memory").glob("*.memory"))) == 1


def test_auto_remembers_unless_other_settings_say_how_it_drafts(model):
    assert isinstance(LLM(model).engine.parts.drafter, MemoryDrafter)
    for options in ({"memory": False}, {"suffix_decoding_tree": False}, {"cascade_threshold": 0.7}):
        found = LLM(model, {"method": "auto", **options}).engine.parts.drafter
        assert "memory" not in found.name, options
        assert found.default_num_nodes == 16 or isinstance(found, CascadeDrafter)
    with pytest.raises(ConfigError, match="suffix_decoding_tree is False, which does nothing: memory is true"):
        DraftConfig(method="auto", options={"memory": True, "suffix_decoding_tree": False})
    with pytest.raises(
        ConfigError, match="memory_remember is True, which does nothing: there is no memory beside memory false"
    ):
        DraftConfig(method="auto", options={"memory": False, "memory_remember": True})
    with pytest.raises(ConfigError, match="memory_remember is True, which does nothing: the memory is kept in f"):
        DraftConfig(method="memory", options={"memory_file": "f", "memory_remember": True})
    with pytest.raises(ConfigError, match="memory_bytes is 5; allowed"):
        DraftConfig(method="memory", options={"memory_bytes": 5})


def test_the_command_line_says_where(tmp_path):
    assert draft_options(None, None, None, memory=tmp_path)["drafter"] == {"memory_file": str(tmp_path)}
    assert draft_options("memory", None, 3, remember=True)["drafter"] == {"method": "memory", "memory_remember": True}
    config = draft_options(None, json.dumps({"method": "auto"}), None, remember=True)["speculative_config"]
    assert config == {"method": "auto", "memory_remember": True}
    with pytest.raises(ConfigError, match="give one of them"):
        draft_options(None, None, None, memory=tmp_path, remember=True)
    with pytest.raises(ConfigError, match="name one with --drafter too"):
        draft_options(None, None, None, profile=tmp_path, remember=True)
    with pytest.raises(ConfigError, match="has memory_remember, and so has the command line"):
        draft_options(None, json.dumps({"memory_remember": False}), None, remember=True)


def test_generate_remembers_and_forget_erases(files, tmp_path, capsys):
    command = ["generate", "--model", str(files.target), "--runtime", "torch", "--raw", "--prompt", "abc bad abc",
               "--max-tokens", "24", "--ignore-eos", "--json"]  # fmt: skip
    records = []
    for extra in ([], ["--remember"], ["--remember"], ["--memory", str(tmp_path / "mine")]):
        assert main([*command, *extra]) == 0
        records.append(json.loads(capsys.readouterr().out))
    assert len({json.dumps(record["token_ids"]) for record in records}) == 1
    assert (tmp_path / "mine").is_file()
    assert main(["forget"]) == 0
    assert "erased 1 memory" in capsys.readouterr().out
    assert main([*command, "--drafter", "ngram", "--remember"]) == 2
    assert "memory_remember does nothing for ngram; it belongs to auto, memory" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [None, 1, "no"])
def test_whether_to_remember_is_yes_or_no(wrong):
    with pytest.raises(ConfigError, match="remember is"):
        DraftingParams(remember=wrong)


def test_suffix_keeps_it_out_of_past_outputs_too(model):
    llm = LLM(model, {"method": "suffix", "suffix_decoding_max_cached_requests": 5})
    past = llm.engine.parts.drafter.past
    for remember, expected in ((False, 0), (True, 1)):
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8), drafting=DraftingParams(remember=remember))
        assert len(past) == expected
