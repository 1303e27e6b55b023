"""Random combinations of everything against plain decoding; `make fuzz` runs 5,000 of them.

Each number stands for prompts, options, drafter, verifier, policy, batch, prefill chunk, per-request drafting and the way
of asking (`support.fuzz`), each block of numbers for a shape of model (`support.model_shapes`).
"""

import signal
from dataclasses import replace

import pytest

from foreword.engine.llm import LLM
from foreword.runtime.select import native_problem
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from tests.support import fuzz, fuzz_callers
from tests.support.model_shapes import tiny_shape
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("without_shape_checks")
FIRST, NUM_COMBOS = 100_000, 30  # other numbers than the long run's
SHAPES = (101, 102, 103, 104)


@pytest.fixture(scope="module")
def models(files):
    return loaded(files)


def loaded(files):
    names = [name for name in fuzz.RUNTIMES if name == "torch" or not native_problem()]
    return {name: files.load(name) for name in names}


def test_random_combinations_give_the_tokens_of_plain_decoding(files, models):
    count = fuzz.run_combos(range(FIRST, FIRST + NUM_COMBOS), files, models)
    assert count.faults == []
    assert count.near_ties == []
    assert count.accepted > 50
    assert count.drafted > 2 * count.accepted  # right and wrong guesses


@pytest.mark.parametrize("number", SHAPES)
def test_models_of_other_shapes_give_the_tokens_of_plain_decoding(number, tmp_path):
    files = write_tiny_llm(tmp_path, tiny_shape(number))
    count = fuzz.run_combos(range(FIRST + 100 * number, FIRST + 100 * number + 5), files, loaded(files))
    assert count.faults == []
    assert count.calls


def test_shapes_differ_in_everything():
    shapes = [tiny_shape(number) for number in range(60)]
    specs = [shape.spec for shape in shapes]
    assert {spec.family for spec in specs} == set(FAMILIES)
    assert {shape.num_shards for shape in shapes} == {1, 2}
    assert {shape.native_dtype for shape in shapes} == {"int8", "int4"}
    for name in (
        "num_layers",
        "hidden_size",
        "head_dim",
        "vocab_size",
        "context_len",
        "tied_head",
        "group_size",
        "rope",
    ):
        assert len({repr(getattr(spec, name)) for spec in specs}) > 1, name


def test_a_number_is_one_combination(files):
    first, again = fuzz.make_combo(7, files), fuzz.make_combo(7, files)
    assert str(first) == str(again)
    assert first.prompts == again.prompts
    assert str(first) != str(fuzz.make_combo(8, files))


def test_a_difference_is_reported_with_the_command_that_repeats_it(files, models, monkeypatch):
    """A seed that is lost on the way to the drafted run: seen, no near-tie, and named."""
    number = next(n for n in range(100) if _draws(fuzz.make_combo(n, files)))
    combo, count = fuzz.make_combo(number, files), fuzz.Count()
    generate = LLM.generate

    def forgetful(self, prompts, params, **options):
        if self.config.method != "none":
            params = [replace(p, seed=p.seed + 1) for p in params]
        return generate(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", forgetful)
    fuzz.check(combo, models["torch"], count)
    assert count.near_ties == []
    assert count.faults
    assert count.faults[0].startswith(f"python -m benchmarks.fuzz --first {number} --count 1 ")


def test_an_interruption_reaches_a_process_that_was_started_with_the_signal_ignored(files, models):
    """As a shell starts what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        llm = LLM(models["torch"], "ngram")
        (result,) = fuzz_callers.ask(
            "interrupted", llm, [[1, 2, 3]], [SamplingParams(max_tokens=5)], [DraftingParams()], 1
        )
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "left as it was"
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.token_ids


def _draws(combo: fuzz.Combo) -> bool:
    def is_free(params: SamplingParams) -> bool:
        return params.temperature > 0.5 and params.max_tokens > 10 and params.grammar is None and not params.stop

    return combo.runtime == "torch" and combo.style == "generate" and any(map(is_free, combo.params))
