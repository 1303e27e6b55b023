"""Every drafter over models of other families than Llama, native: the tokens of plain decoding, greedy and sampled, in a batch."""

import shutil

import pytest

from foreword.engine.llm import LLM, load_model
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from tests.support.combos import ROWS
from tests.support.family_models import WINDOW, made_model
from tests.support.tiny_llm import VOCAB_SIZE

pytestmark = [
    pytest.mark.skipif(native_problem() is not None, reason=str(native_problem())),
    pytest.mark.usefixtures("without_shape_checks"),
]
# Windows of a drafter's depth and more, two ropes, norms after blocks, one norm for both, caps, scales.
FAMILIES = ("gemma2", "gemma3", "olmo3", "cohere2", "granite")
ROWS_BY_KEY = {row.key: row for row in ROWS if not row.kind and row.shape}
PROMPTS = ["abc bad abc bad abc bad", "face 01", "cab cab cab cab cab"]
PARAMS = [
    SamplingParams(max_tokens=4 * WINDOW, ignore_eos=True, **options)
    for options in (
        {},
        {"temperature": 0.9, "top_p": 0.95, "seed": 4},
        {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.2},
    )
]


@pytest.fixture(scope="module")
def targets(files, tmp_path_factory):
    """target(family): a native model of the sizes and the tokenizer that `files` draft for, and its plain answers."""
    folder, loaded = tmp_path_factory.mktemp("families"), {}
    spec = files.load().checkpoint.spec

    def target(family):
        if family not in loaded:
            path = folder / family
            made_model(family, hidden_size=spec.hidden_size, vocab_size=VOCAB_SIZE).save_pretrained(path)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(files.target / name, path / name)
            model = load_model(path, runtime="native", threads=2, cache_dir=folder / "cache")
            loaded[family] = model, answers(LLM(model, "none", batch_size=1))
        return loaded[family]

    return target


def answers(llm):
    return [result.token_ids for result in llm.generate(PROMPTS, PARAMS)]


# Each drafter over one family, each family below several drafters; the whole product is a sweep.
CELLS = [
    pytest.param(key, family, marks=() if (i - j) % len(FAMILIES) == 0 else pytest.mark.slow)
    for i, key in enumerate(ROWS_BY_KEY)
    for j, family in enumerate(FAMILIES)
]


@pytest.mark.parametrize(("key", "family"), CELLS)
def test_tokens_are_those_of_plain_decoding(key, family, files, targets):
    model, plain = targets(family)
    row = ROWS_BY_KEY[key]
    config = {"method": row.drafter, "num_speculative_tokens": 2 * WINDOW, **row.config}
    config = {name: value.format(**vars(files)) if isinstance(value, str) else value for name, value in config.items()}
    llm = LLM(model, config, batch_size=3, policy="fixed")
    results = llm.generate(PROMPTS, PARAMS)
    assert [result.token_ids for result in results] == plain
    assert sum(result.stats.drafted_tokens for result in results) > 0
