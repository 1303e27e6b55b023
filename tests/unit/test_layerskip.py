"""The target's first layers draft on the target's own cache and leave it as they found it."""

import pytest
import torch

from foreword.draft.model.layerskip import FirstLayers, LayerSkipDrafter, LayerSkipOptions
from foreword.engine.fixed_policy import FixedController
from foreword.errors import ConfigError
from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.drafters import Checked
from tests.support.tiny_models import FAMILIES, TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run


def decoder_of(spec, weights):
    return TorchRuntime().decoder(spec, weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_are_a_model_of_so_many_layers(family):
    """On the whole model's cache, committed rows of the lower layers included, they say what the short model says."""
    spec = tiny_spec(family)
    weights = TinyWeights(spec)
    whole, short = decoder_of(spec, weights), decoder_of(tiny_spec(family, num_layers=2), weights)
    first = whole.first_layers(2)
    text, tree = [5, 17, 3, 42, 8], DraftTree([9, 1, 2, 3], [-1, 0, 0, 2])
    logits = []
    for decoder, reader in ((whole, first), (short, short)):
        cache = decoder.new_cache()
        slot = cache.open(32)
        decoder.forward(pack([DraftTree.chain(text)], [0], [slot]), cache, Need())
        cache.commit(slot, range(5))
        logits.append(reader.forward(pack([tree], [5], [slot]), cache, Need(logits=range(4))).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-5)


class UntouchedCache(Checked):
    """A proposal leaves the target's cache as it was."""

    def propose(self, requests, plans):
        cache = self.drafter.autoregression.reader.target.cache
        before = [cache.rows(request.slot) for request in requests]
        trees = super().propose(requests, plans)
        for request, (keys, values) in zip(requests, before, strict=True):
            assert cache.length(request.slot) == request.kv_len
            after = cache.rows(request.slot)
            assert torch.equal(after[0], keys)
            assert torch.equal(after[1], values)
        return trees


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 3}], ids=["greedy", "sampled"])
def test_real_layers_draft_and_no_word_changes(options, width):
    spec = tiny_spec("llama", num_layers=4)
    decoder = decoder_of(spec, TinyWeights(spec, seed=1))
    prompts = [[5, 17, 3, 42], [1, 2, 3, 1, 2, 3, 1], [90]]
    params = [SamplingParams(max_tokens=30, **options)] * len(prompts)
    plain = [r.new_ids for r in run(make_engine(decoder), prompts, params)]
    target = Target(decoder)
    drafter = UntouchedCache(LayerSkipDrafter(target, LayerSkipOptions(exit_layer=3, draft_tree_width=width)))
    requests = run(make_engine(decoder, drafter, target=target, num_nodes=6, batch_size=3), prompts, params)
    assert [r.new_ids for r in requests] == plain
    assert sum(r.stats.accepted_tokens for r in requests) > 0


def test_a_model_whose_upper_layers_do_nothing_is_always_right():
    """Layers that add nothing to the stream: the first two say what all four say, at every depth of the draft."""
    spec = tiny_spec("llama", num_layers=4)
    weights = TinyWeights(spec)
    for layer in (2, 3):
        weights.tensors[f"layers.{layer}.o.weight"].zero_()
        weights.tensors[f"layers.{layer}.down.weight"].zero_()
    decoder = decoder_of(spec, weights)
    target = Target(decoder)
    drafter = LayerSkipDrafter(target, LayerSkipOptions(exit_layer=2))
    params = SamplingParams(max_tokens=1 + 5 * 20)
    engine = make_engine(decoder, drafter, target=target, num_nodes=4)
    assert isinstance(engine.parts.controller, FixedController)
    (request,) = run(engine, [[5, 17, 3]], [params])
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 80


def test_exit_layers():
    decoder = decoder_of(tiny_spec("llama"), TinyWeights(tiny_spec("llama")))
    with pytest.raises(ConfigError, match="exit_layer is 3; allowed: 1 to 2"):
        LayerSkipDrafter(Target(decoder), LayerSkipOptions(exit_layer=3))
    with pytest.raises(ConfigError, match="exit_layer is 0; allowed: a whole number, 1 or above"):
        LayerSkipOptions(exit_layer=0)
    drafter = LayerSkipDrafter(Target(decoder), LayerSkipOptions())
    assert isinstance(drafter.autoregression.reader, FirstLayers)
    assert drafter.autoregression.reader.decoder.spec.num_layers == 1
