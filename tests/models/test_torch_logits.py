"""On the torch runtime every family's logits equal those of transformers: whole prompts, chunks, and trees across every edge."""

import numpy as np
import pytest
import torch

from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from tests.native.models import batch_of, chain, random_tree
from tests.support.family_models import CONFIGS, VOCAB_SIZE, distance, family_model, logits_of

TOKENS = np.random.default_rng(3).integers(3, VOCAB_SIZE, 40).tolist()
MOST = 1e-5


@pytest.fixture(params=CONFIGS, scope="module")
def family(request, opened):
    """Name, decoder, and transformers' logits of `TOKENS`."""
    checkpoint = opened(request.param)
    decoder = TorchRuntime("cpu", "float32").decoder(checkpoint.spec, checkpoint)
    return request.param, decoder, logits_of(family_model(request.param), TOKENS)


def read(decoder, sizes):
    """Logits of `TOKENS`, read in pieces of these sizes."""
    cache = decoder.new_cache()
    slot, at, found = cache.open(64), 0, []
    for size in sizes:
        batch = chain(TOKENS[at : at + size], at, slot)
        found.append(decoder.forward(batch, cache, Need(logits=range(size))).logits)
        cache.commit(slot, range(size))
        at += size
    return torch.cat(found)


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (5, 6, 7, 1, 1, 16, 4)], ids=["whole", "one by one", "pieces"])
def test_logits(family, sizes):
    _, decoder, expected = family
    assert distance(read(decoder, sizes), expected) < MOST


@pytest.mark.parametrize("seed", range(3))
def test_trees(family, seed):
    """A tree that holds the true path among random branches, beside a chunk of another request; then the path is kept."""
    _, decoder, expected = family
    rng = np.random.default_rng(seed)
    cache = decoder.new_cache()
    slots = [cache.open(80), cache.open(80)]
    prefix, depth, chunk = int(rng.integers(3, 18)), int(rng.integers(4, 12)), int(rng.integers(2, 12))
    for slot, length in zip(slots, (9, prefix), strict=True):
        decoder.forward(chain(TOKENS[:length], 0, slot), cache, Need())
        cache.commit(slot, range(length))
    tokens, parents, path = random_tree(rng, TOKENS[prefix : prefix + depth], 24, VOCAB_SIZE)
    prompt = (TOKENS[9 : 9 + chunk], list(range(-1, chunk - 1)))
    batch = batch_of([prompt, (tokens, parents)], [9, prefix], slots)
    logits = decoder.forward(batch, cache, Need(logits=range(batch.num_nodes))).logits
    assert distance(logits[:chunk], expected[9 : 9 + chunk]) < MOST
    assert distance(logits[[chunk + node for node in path]], expected[prefix : prefix + depth]) < MOST
    cache.commit(slots[1], path)
    at = prefix + depth
    after = decoder.forward(chain(TOKENS[at : at + 3], at, slots[1]), cache, Need(logits=range(3))).logits
    assert distance(after, expected[at : at + 3]) < MOST
