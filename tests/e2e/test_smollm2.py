"""The default model, for real: prompt lookup gives the tokens of plain decoding, greedy and sampled."""

import json
from types import SimpleNamespace

import pytest
import torch

from foreword.bench.fidelity import LOGIT_TOLERANCE, explain_difference
from foreword.engine.llm import LLM, load_model
from foreword.errors import LoadError
from foreword.runtime.base import Need
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.settled import settled
from tests.support.tiny_models import hf_model, tensor_shapes

# A real model takes its time: a busy machine must not look like a hang, and a million shape checks add a minute.
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("without_shape_checks")]

PROMPTS = [
    [{"role": "user", "content": "What is gravity?"}],
    [{"role": "user", "content": "Write a Python function that reverses a string, then explain each line."}],
    [
        {
            "role": "user",
            "content": "Rename x to total in: def add(x, y):\n    x = x + y\n    return x\nGive the whole function.",
        }
    ],
    [{"role": "user", "content": "Translate to French: The weather is nice today and I would like to go for a walk."}],
    "Once upon a time, in a small village by the sea,",
]


@pytest.fixture(scope="module")
def model():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)  # half the time of this file, which is the longest of the suite
    try:
        yield load_model(None, runtime="torch", dtype="float32")
    except LoadError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("num_tokens", [40, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "sampled"])
def test_prompt_lookup_gives_the_tokens_of_plain_decoding(model, options, num_tokens):
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, **options)
    plain = LLM(model, "none", batch_size=5).generate(PROMPTS, params)
    drafted = LLM(model, "ngram", batch_size=5).generate(PROMPTS, params)
    near_ties = []
    for a, b in zip(plain, drafted, strict=True):
        assert len(a.token_ids) == len(b.token_ids) == num_tokens
        sampler = Sampler(params.warp, a.seed)
        difference = explain_difference(
            model.decoder, a.prompt_token_ids, a.token_ids, b.token_ids, sampler, LOGIT_TOLERANCE["float32"]
        )
        if difference is not None:
            print(difference)
            assert difference.is_near_tie, str(difference)
            near_ties.append(difference)
    print(json.dumps({"near_ties": len(near_ties), "tokens": num_tokens * len(PROMPTS)}))
    assert len(near_ties) <= 1
    if not options:
        assert sum(b.stats.accepted_tokens for b in drafted) > 0


def test_text_is_sensible_and_ends(model):
    (result,) = LLM(model).generate([PROMPTS[0]], SamplingParams(max_tokens=400))
    assert "force" in result.text
    assert "<|im_end|>" not in result.text
    assert result.finish_reason == "stop"


def test_streamed_pieces_join_to_the_text(model):
    llm = LLM(model)
    prompt = [{"role": "user", "content": "Write 'I love you' in Chinese and in Japanese, with emoji."}]
    pieces = list(llm.stream(prompt, SamplingParams(max_tokens=60)))
    (whole,) = llm.generate([prompt], SamplingParams(max_tokens=60))
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert pieces[-1].result is not None
    assert pieces[-1].result.text == whole.text
    assert all(p.result is None for p in pieces[:-1])


def test_a_reader_that_goes_away_frees_the_request(model):
    llm = LLM(model)
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=50))
    next(stream)
    stream.close()
    engine = settled(llm)
    assert not engine.running
    assert engine.parts.target.cache.num_open == len(engine.memory.prefixes)  # what the prefix cache keeps


def test_logits_are_those_of_transformers(model):
    """The real weights through both implementations, float32: relative error below 1e-4 at every node."""
    spec, source = model.checkpoint.spec, model.checkpoint.as_dtype("float32")
    weights = SimpleNamespace(spec=spec, tensors={n: source.tensor(n).float() for n in tensor_shapes(spec)})
    token_ids = model.tokenizer.encode(
        "The tide goes out because the moon pulls at the sea, and comes back as 1, 2, 3."
    )
    with torch.inference_mode():
        expected = hf_model(weights)(torch.tensor([token_ids])).logits[0]
    cache = model.decoder.new_cache()
    batch = pack([DraftTree.chain(token_ids)], [0], [cache.open(len(token_ids))])
    logits = model.decoder.forward(batch, cache, Need(logits=range(len(token_ids)))).logits
    assert logits is not None
    assert float((logits - expected).norm() / expected.norm()) < 1e-4
    assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4
