"""What the native runtime does with families that it does not compute: torch takes over, says why, and nothing is computed wrongly."""

import pytest

from foreword.engine.llm import load_model
from foreword.errors import UnsupportedModelError
from foreword.runtime.base import Need
from foreword.runtime.select import native_problem
from tests.native.models import chain
from tests.support.family_models import CONFIGS, WINDOW, distance, family_model, logits_of, save_family

pytestmark = pytest.mark.skipif(native_problem() is not None, reason=str(native_problem()))
# Of these only windows are not Llama's: within them they are.
CUT = ("mistral", "ministral", "qwen2_window", "phi3")
TOKENS = [5, 6, 7, 8, 9]


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in CUT])
def test_torch_takes_over_and_says_why(name, tmp_path_factory):
    folder = save_family(name, tmp_path_factory.mktemp(name))
    loaded = load_model(folder)
    assert loaded.choice.name == "torch"
    assert "the native runtime does not compute" in loaded.choice.reason
    with pytest.raises(UnsupportedModelError, match="native runtime does not compute"):
        load_model(folder, dtype="int8")


@pytest.mark.parametrize("name", CUT)
def test_a_context_within_the_window_stays_native(name, tmp_path):
    folder = save_family(name, tmp_path)
    loaded = load_model(folder, cache_dir=tmp_path / "cache")
    assert loaded.choice.name == "native"
    assert f"its window of {WINDOW} tokens" in loaded.choice.reason
    assert loaded.checkpoint.spec.context_len == WINDOW
    cache = loaded.decoder.new_cache()
    batch = chain(TOKENS, 0, cache.open(WINDOW))
    logits = loaded.decoder.forward(batch, cache, Need(logits=range(len(TOKENS)))).logits
    assert distance(logits, logits_of(family_model(name), TOKENS)) < 0.1  # of int8 weights
