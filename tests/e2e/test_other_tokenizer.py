"""A real pair of two tokenizers, universal drafting for the default model: 512 SentencePiece tokens for 49,152 of byte level."""

import json

import pytest

from foreword.engine.llm import LLM, load_model
from foreword.sampling.params import SamplingParams
from tests.support.stories import write_stories

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("without_shape_checks")]
PROMPTS = [
    "Once upon a time, there was a little girl named Lily. She loved to",
    "Tom and his dog  Max\n\n went to the caf\u00e9 \U0001f600. \u201cLook!\u201d said",
    [{"role": "user", "content": "Tell me a short story about a cat and a red ball."}],
]
OPTIONS = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 5}}


@pytest.fixture(scope="module")
def stories(shared_dir, tmp_path_factory):
    source = shared_dir / "data" / "models" / "stories260K"
    if not source.is_dir():
        pytest.skip("the model stories260K is not in the shared data folder")
    return source, write_stories(source, tmp_path_factory.mktemp("stories") / "stories260K.gguf")


@pytest.fixture(scope="module")
def model(native_default_model):
    return native_default_model


def test_the_converted_model_is_the_model(stories):
    """Its tokenizer and its greedy stories are the known ones."""
    source, path = stories
    known = json.loads((source / "golden.json").read_text())
    llm = LLM(load_model(path, runtime="torch", dtype="float32"), "none")
    for entry in known["encode"]:
        assert llm.tokenizer.encode(entry["text"]) == entry["ids"]
    for story in known["greedy"][2:]:
        length = min(len(story["ids"]) - len(story["prompt_ids"]), 40)
        (result,) = llm.generate([story["prompt_ids"]], SamplingParams(max_tokens=length, ignore_eos=True))
        assert [*story["prompt_ids"], *result.token_ids] == story["ids"][: len(story["prompt_ids"]) + length]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_drafts_and_changes_no_token(stories, model, options):
    """[R53]: double spaces, newlines and characters outside its words included."""
    params = SamplingParams(max_tokens=32, ignore_eos=True, **OPTIONS[options])
    plain = LLM(model, "none", batch_size=1).generate(PROMPTS, params)
    drafted = LLM(model, f"draft_model={stories[1]}", num_speculative_tokens=4, batch_size=3).generate(PROMPTS, params)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert [r.text for r in drafted] == [r.text for r in plain]
    assert all(r.stats.drafted_tokens > 0 for r in drafted)
    assert sum(r.stats.accepted_tokens for r in drafted) > 3
