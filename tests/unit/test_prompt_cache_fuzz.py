"""Random requests, aborts, little memory, a small folder that two engines share, damage and restarts: only right tokens."""

import random
from pathlib import Path

import pytest

from foreword.engine.prefix_store import STORED_ROWS
from foreword.sampling.params import SamplingParams
from tests.support.toy_disk import ROW_BYTES, SavableToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TOKENIZER = byte_tokenizer("hello")
DECODER = SavableToyDecoder(vocab_size=TOKENIZER.vocab_size)
FILE_BYTES = STORED_ROWS * ROW_BYTES + 56
STEMS = [[(i * i + stem * i + stem) % 200 for i in range(400)] for stem in range(3)]


def new_llm(rng, folder):
    return toy_llm(
        DECODER, TOKENIZER, rng.choice(("none", "ngram", "suffix", "recycling", "lookahead")),
        batch_size=rng.randint(1, 4), kv_cache_bytes=rng.choice((520, 900, 5000)) * ROW_BYTES,
        prompt_cache=folder, prompt_cache_bytes=rng.choice((3, 9, 100)) * FILE_BYTES,
    )  # fmt: skip


def prompt_of(rng):
    stem = rng.choice(STEMS)[: rng.choice((1, 63, 64, 65, 128, 200, 400))]
    return [*stem, *(rng.randrange(200) for _ in range(rng.randint(0, 2)))]


def do_harm(rng, folder):
    for path in sorted(folder.glob("*.rows")):
        if rng.random() < 0.2:
            data = bytearray(path.read_bytes())
            match rng.randrange(4):
                case 0:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case 1:
                    del data[rng.randrange(len(data)) :]
                case 2:
                    path.unlink()
                    continue
                case 3:
                    path.replace(path.with_name("ab" * 32 + ".rows"))
                    continue
            path.write_bytes(data)


def submit(rng, llm):
    drawn = rng.choice(({}, {"temperature": 1.0, "seed": rng.randrange(9)}))
    params = SamplingParams(max_tokens=rng.randint(1, 8), ignore_eos=True, **drawn)
    request = llm._prepare([prompt_of(rng)], params, None)[0].request(0)
    llm.engine.add(request)
    return request


def check(llm, requests):
    cache, memory = llm.engine.parts.target.cache, llm.engine.memory
    assert cache.num_open == len(memory.prefixes)
    assert not memory.disk._loading
    for region in memory.prefixes.finished:
        held = [token for token, _ in cache.regions[region.slot][: cache.length(region.slot)]]
        assert held == list(region.token_ids[: region.num_held])
    for request in requests:
        assert request.error is None
        expected = plain_tokens(DECODER, request.token_ids[: request.prompt_len], request.params)
        whole = request.finish_reason != "abort"
        assert request.new_ids == (expected if whole else expected[: len(request.new_ids)])


@pytest.mark.parametrize("number", range(12))
def test_only_right_tokens(number, tmp_path: Path):
    rng = random.Random(number)
    num_stored = 0
    for _ in range(3):  # restarts
        pair = [new_llm(rng, tmp_path), new_llm(rng, tmp_path)]
        asked = [[], []]
        for _ in range(10):
            which = rng.randrange(2)
            llm, requests = pair[which], asked[which]
            requests += [submit(rng, llm) for _ in range(rng.randint(1, 2))]
            for _ in range(rng.randint(0, 12)):
                llm.engine.step()
                llm.engine.save(is_idle=rng.random() < 0.5)
            if rng.random() < 0.3:
                llm.engine.abort(rng.choice(requests))
            if rng.random() < 0.15:
                do_harm(rng, tmp_path)
        for llm, requests in zip(pair, asked, strict=True):
            while llm.engine.step():
                llm.engine.save(is_idle=rng.random() < 0.2)
            check(llm, requests)
            num_stored += llm.snapshot().stored_tokens
            if rng.random() < 0.7:  # else it is killed
                llm.close()
            assert sum(path.stat().st_size for path in tmp_path.glob("*.rows")) <= 101 * FILE_BYTES
    assert num_stored > 0
