"""Drafting options of one request: on or off, how much, and a reference. They change the number of steps, never a token."""

import asyncio
import json
import logging
import random

import numpy as np
import pytest

import foreword
from foreword.cli.main import main
from foreword.cli.prompt_file import read_prompts
from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.draft.lookup.reference_text import ReferenceCursor
from foreword.engine.request import Request
from foreword.errors import ConfigError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from tests.support.drafters import DRAFTERS, Checked
from tests.support.settled import settled
from tests.support.tiny_chat import write_tiny_chat
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, SAMPLED, make_engine, plain_tokens
from tests.support.toy_llm import ScriptDecoder, byte_tokenizer, toy_llm

DECODER = ToyDecoder(num_layers=2)
OFF = DraftingParams(enabled=False)
TOKENIZER = byte_tokenizer()
VOCAB = TOKENIZER.vocab_size
FILE = (
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return depth * 2\n"
)
EDITED = FILE.replace("depth * 2", "area(width, height) * depth").replace("def area", "def area_of")


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def editor(drafter, **options):
    """A model that answers with the edited file, whatever it is asked."""
    return toy_llm(ScriptDecoder(ids(EDITED), VOCAB, prompt_len=len(ids("edit:"))), TOKENIZER, drafter, **options)


EDIT = SamplingParams(max_tokens=len(ids(EDITED)), ignore_eos=True)


# --- the options themselves


WRONG = [
    ({"num_speculative_tokens": -1}, f"num_speculative_tokens is -1; allowed: a whole number, 0 to {MAX_SPECULATIVE_TOKENS}"),
    ({"num_speculative_tokens": MAX_SPECULATIVE_TOKENS + 1}, "num_speculative_tokens is 513"),
    ({"num_speculative_tokens": 2.0}, "num_speculative_tokens is 2.0"),
    ({"num_speculative_tokens": True}, "num_speculative_tokens is True"),
    ({"enabled": 1}, "enabled is 1; allowed: true or false"),
    ({"reference": 5}, "reference is 5; allowed: a text, a list of token ids, or None"),
    ({"reference": b"bytes"}, "reference is b'bytes'"),
    ({"reference": [1, "a"]}, r"reference is \[1, 'a'\]"),
    ({"reference": [-1]}, r"reference is \[-1\]; allowed: a text, a list of token ids"),
    ({"reference": [True]}, r"reference is \[True\]"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        DraftingParams(**options)


def test_references_of_any_kind_of_list():
    assert DraftingParams(reference=np.array([1, 2])).reference == (1, 2)
    assert DraftingParams(reference=[]).reference == ()
    assert hash(DraftingParams(reference=[3])) == hash(DraftingParams(reference=(3,)))


def test_everything_is_checked_before_anything_runs():
    llm, num_passes = toy_llm(DECODER, TOKENIZER, "ngram"), DECODER.num_passes
    for drafting, message in [
        (DraftingParams(reference=[3, 12]), "the reference has token id 12, .* allowed: 0 to 11"),
        ([DraftingParams()] * 3, "3 drafting params for 2 prompts; give one, or one per prompt"),
        ({"enabled": False}, "drafting params are {'enabled': False}; allowed: one DraftingParams"),
        ([None, "off"], "drafting params are 'off'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            llm.iterate([[1], [2]], drafting=drafting)
    with pytest.raises(ConfigError, match="sampling params are {}; allowed: one SamplingParams"):
        llm.generate([[1]], {})
    assert (DECODER.num_passes, len(llm.engine.waiting)) == (num_passes, 0)


# --- on, off, and how much


def record_plans(engine):
    """Plans by request, as the engine makes them."""
    plans, plan = {}, engine.parts.controller.plan

    def recorded(requests):
        made = plan(requests)
        for request, own in zip(requests, made, strict=True):
            plans.setdefault(request.request_id, []).append(own)
        return made

    engine.parts.controller.plan = recorded
    return plans


@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_of_one_batch_draft_as_each_asks_for(name):
    """Every drafter; neighbours that are switched off, ask for less, for more, or bring a reference."""
    params = SamplingParams(**{**SAMPLED, "max_tokens": 14})
    target = Target(DECODER)
    engine = make_engine(DECODER, Checked(DRAFTERS[name](target)), target=target, num_nodes=5)
    plans = record_plans(engine)
    answer = plain_tokens(DECODER, PROMPTS[4], params)
    asked = [OFF, *(DraftingParams(num_speculative_tokens=n) for n in (0, 2, 12)), DraftingParams(reference=answer)]
    requests = [
        Request(list(prompt), params, context_len=4096, drafting=drafting)
        for prompt, drafting in zip(PROMPTS, asked, strict=True)
    ]
    for request in requests:
        engine.add(request)
    while engine.step() is not None:
        pass
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert request.new_ids == plain_tokens(DECODER, prompt, params)
    most = [max(plan.num_nodes for plan in plans[request.request_id]) for request in requests]
    assert most == [0, 0, 2, 12, 5]
    assert [request.stats.drafted_tokens for request in requests[:2]] == [0, 0]
    reasons = {plan.reason for plan in plans[requests[0].request_id]}
    assert reasons == {"reading the prompt", "switched off for this request"}
    assert "the size that this request sets" in {plan.reason for plan in plans[requests[3].request_id]}
    assert sum(request.stats.drafted_tokens for request in requests[2:]) > 0


def test_drafting_may_be_off_for_all_but_some():
    """A number of its own switches a request on where the model's is 0; without a drafter it changes nothing."""
    asked = [None, DraftingParams(num_speculative_tokens=4)]
    first, second = editor("suffix", num_speculative_tokens=0).generate(["edit:"] * 2, EDIT, drafting=asked)
    assert first.stats.drafted_tokens == 0 < second.stats.drafted_tokens
    assert first.text == second.text == EDITED
    (plain,) = editor("none").generate(["edit:"], EDIT, drafting=asked[1:])
    assert plain.stats.num_steps == len(plain.token_ids) - 1


def test_streams_and_samples_take_the_options_too():
    llm = editor("ngram")
    *_, last = llm.stream("edit:", EDIT, drafting=OFF)
    assert last.result.stats.drafted_tokens == 0

    async def steps():
        pieces = [piece async for piece in llm.astream("edit:", EDIT, drafting=DraftingParams(reference=FILE))]
        return pieces[-1].result

    (alone,) = llm.generate("edit:", EDIT)
    assert asyncio.run(steps()).stats.num_steps < alone.stats.num_steps
    options = SamplingParams(max_tokens=9, ignore_eos=True, n=3)
    assert [r.stats.drafted_tokens for r in llm.generate("edit:", options, drafting=OFF)] == [0] * 3


# --- references


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "ngram,recycling"])
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_a_reference_brings_more_tokens_a_step_and_the_same_tokens(drafter, kind):
    reference = FILE if kind == "text" else ids(FILE)
    llm = editor(drafter)
    (without,) = llm.generate("edit:", EDIT)
    (with_it,) = llm.generate("edit:", EDIT, drafting=DraftingParams(reference=reference))
    assert with_it.text == without.text == EDITED
    assert with_it.stats.tokens_per_step > 1.5 * without.stats.tokens_per_step
    assert with_it.prompt_token_ids == without.prompt_token_ids == ids("edit:")
    assert (with_it.stats.prompt_tokens, with_it.stats.new_tokens) == (len(ids("edit:")), len(ids(EDITED)))


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_reference_enters_no_pass_no_penalty_and_no_limit(drafter):
    """Longer than the context, penalised tokens in it, prompt and answer up to the context's end."""
    decoder = ToyDecoder(vocab_size=VOCAB, context_len=60)
    params = SamplingParams(max_tokens=100, ignore_eos=True, repetition_penalty=1.4, frequency_penalty=0.5)
    llm, longest = toy_llm(decoder, TOKENIZER, drafter), []
    forward = decoder.forward
    decoder.forward = lambda batch, cache, need, **k: (
        longest.append(max(batch.positions)),
        forward(batch, cache, need),
    )[1]
    (without,) = llm.generate([[5, 6, 7]], params)
    reference = without.token_ids * 3
    (with_it,) = llm.generate([[5, 6, 7]], params, drafting=DraftingParams(reference=reference))
    assert len(reference) > 60
    assert with_it.token_ids == without.token_ids
    assert with_it.finish_reason == "length"
    assert max(longest) < 60
    assert with_it.stats.num_steps < without.stats.num_steps / 2


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_reference_is_one_requests_own(drafter):
    llm = editor(drafter)
    (fresh,) = llm.generate("edit:", EDIT)
    llm.generate("edit:", EDIT, drafting=DraftingParams(reference=FILE))
    (after,) = llm.generate("edit:", EDIT)
    assert after.stats.num_steps == fresh.stats.num_steps


@pytest.mark.parametrize(("drafter", "is_told"), [("recycling", True), ("ngram", False), ("none", False)])
def test_a_reference_of_no_use_is_said_once(drafter, is_told, caplog):
    llm = editor(drafter)
    with caplog.at_level(logging.WARNING, "foreword"):
        llm.generate("edit:", EDIT, drafting=DraftingParams(reference=FILE, enabled=False))
        assert caplog.messages == []
        for _ in range(2):
            assert llm.generate("edit:", EDIT, drafting=DraftingParams(reference=FILE))[0].text == EDITED
    assert len(caplog.messages) == is_told
    assert not is_told or "'recycling' does not use a reference; ngram, suffix and memory do" in caplog.messages[0]


def follow_slowly(reference, longest, shortest, texts):
    """The cursor by its definition: what it says of each of the growing texts."""
    place = agreed = anchor = read = 0
    for text in texts:
        for token in text[read:]:
            goes_on = agreed > 0 and reference[place : place + 1] == [token]
            place, agreed = (place + 1, agreed + 1) if goes_on else (place, 0)
            anchor = place if agreed >= longest else anchor
        read = len(text)
        if agreed < longest:
            agreed = 0
            for n in range(min(longest, len(text)), shortest - 1, -1):
                ends = [e for e in range(n, len(reference)) if reference[e - n : e] == text[-n:]]
                if ends:
                    place, agreed = next((e for e in ends if e >= anchor), ends[-1]), n
                    break
        following = reference[place : place + 5] if agreed else []
        yield (agreed if following else 0), following


@pytest.mark.parametrize("seed", range(30))
def test_the_cursor_is_its_definition(seed):
    rng = random.Random(seed)
    size, shortest = rng.choice([2, 4, 9]), rng.choice([1, 2])
    reference = [rng.randrange(size) for _ in range(rng.randrange(40))]
    text, texts = [0], []
    for start in range(0, len(reference) + 8, 3):
        text = text + (reference[start : start + 3] if rng.random() < 0.7 else [rng.randrange(size)])
        texts.append(text)
    cursor = ReferenceCursor(reference, 3, shortest)
    assert [cursor.continuation(text, 5) for text in texts] == list(follow_slowly(reference, 3, shortest, texts))


def test_the_cursor_goes_on_behind_a_difference():
    #            0  1  2  3  4  5  6  7  8  9
    reference = [1, 2, 3, 4, 5, 6, 1, 2, 5, 9]
    cursor = ReferenceCursor(reference, 3, 1)
    assert cursor.continuation([1, 2, 3], 3) == (3, [4, 5, 6])
    assert cursor.continuation([1, 2, 3, 7], 3) == (0, [])  # 7 stands where 4 stood
    assert cursor.continuation([1, 2, 3, 7, 5], 3) == (1, [6, 1, 2])  # the next 5 after that place, not the last
    assert cursor.continuation([1, 2, 3, 7, 5, 6, 1, 2, 5, 9], 3) == (0, [])  # at the end nothing follows


# --- the command line


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))

    def run(*arguments):
        code = main(["generate", "--model", str(tiny), "--runtime", "torch", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_reference_from_a_file_and_from_a_prompt_line(run, tmp_path):
    options = ["--raw", "--prompt", "hello", "--max-tokens", 40, "--json", "--temperature", 1, "--seed", 4]
    options += ["--drafter", "ngram"]  # auto goes by the clock
    plain = json.loads(run(*options)[1])
    file, lines = tmp_path / "reference.txt", tmp_path / "prompts.jsonl"
    file.write_text(plain["text"])
    code, out, err = run(*options, "--reference", file)
    helped = json.loads(out)
    assert (code, err, helped["token_ids"]) == (0, "", plain["token_ids"])
    assert helped["steps"] < plain["steps"]
    assert helped["prompt_tokens"] == plain["prompt_tokens"]
    lines.write_text(json.dumps({"prompt": "hello", "reference": plain["text"]}) + "\n")
    from_line = json.loads(run("--prompts", lines, *options[3:])[1])
    assert (from_line["token_ids"], from_line["steps"]) == (helped["token_ids"], helped["steps"])


def test_mistakes_with_references_are_named(run, tmp_path):
    code, _, err = run("--prompt", "a", "--reference", tmp_path / "absent.txt")
    assert (code, "the reference file" in err, "cannot be read: No such file" in err) == (2, True, True)
    code, _, err = run("--prompts", tmp_path / "p.jsonl", "--reference", tmp_path / "r.txt")
    assert (code, err) == (2, 'error: --reference goes with --prompt; in a file, lines have the key "reference"\n')


def test_only_a_text_is_a_reference(tmp_path):
    """Data sets keep lists of model answers under the same key."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["a"], "reference": ["b"]}\n{"prompt": "a", "reference": "b"}\n')
    assert [line.reference for line in read_prompts(path)] == [None, "b"]


def test_all_turns_shows_each_by_itself(run, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["hello", "more"]}\n{"prompt": "hello"}\n')
    options = ["--prompts", path, "--json", "--max-tokens", 6, "--ignore-eos", "--seed", 2]
    both, single = map(json.loads, run(*options, "--all-turns")[1].splitlines())
    first, second = both["turns"]
    assert both["text"] == f"{first['text']}\n\n{second['text']}"
    assert both["token_ids"] == first["token_ids"] + second["token_ids"]
    assert both["prompt_tokens"] == first["prompt_tokens"] + second["prompt_tokens"]
    assert [turn["new_tokens"] for turn in both["turns"]] == [6, 6]
    assert second["finish_reason"] == both["finish_reason"] == "length"
    assert [turn["token_ids"] for turn in single["turns"]] == [single["token_ids"]]
    assert all("turns" not in json.loads(line) for line in run(*options)[1].splitlines())


def test_the_name_is_exported():
    assert foreword.DraftingParams is DraftingParams


# --- answers as they end


def test_answers_as_they_end_are_those_of_the_list():
    llm = toy_llm(DECODER, TOKENIZER, "ngram", batch_size=2)
    prompts = [[1, 2], [3, 4], [5, 6], [7]]
    params = [SamplingParams(max_tokens=n, seed=n, temperature=0.7, ignore_eos=True) for n in (24, 2, 3, 5)]
    wanted = llm.generate(prompts, params)
    found = list(llm.as_completed(prompts, params))
    assert [place for place, _ in found] == [1, 2, 3, 0], "the shortest first, as far as two at a time allow"
    assert all(result.token_ids == wanted[place].token_ids for place, result in found)


def test_who_takes_no_more_answers_frees_the_others():
    llm = toy_llm(DECODER, TOKENIZER, "ngram", batch_size=2)
    answers = llm.as_completed([[1], [2], [3]], [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 50, 50)])
    assert next(answers)[0] == 0
    answers.close()
    engine = settled(llm)
    assert (engine.running, len(engine.waiting)) == ([], 0)
