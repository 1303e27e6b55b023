"""GGUF files: every family and kind of quantisation; damage anywhere is an error that says so, never a wrong model."""

import math
import struct

import gguf
import numpy as np
import pytest
import torch

from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.gguf_file import QUANTISATIONS
from foreword.checkpoint.gguf_header import TENSOR_TYPES
from foreword.config import Llama3RopeScaling, RopeSpec
from foreword.errors import CheckpointError, LoadError, UnsupportedModelError
from tests.support.tiny_files import GGUF_SIZES, write_gguf
from tests.support.tiny_models import FAMILIES, TinyWeights, tiny_spec


def gguf_spec(family="llama", **changes):
    return tiny_spec(family, **{**GGUF_SIZES, **changes})


@pytest.fixture
def tiny_gguf(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", TinyWeights(gguf_spec()), tokenizer=True)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_gives_its_spec_and_its_tensors(tmp_path, family, tied):
    """The queries and keys of Llama lie interleaved in the file and come out in order."""
    weights = TinyWeights(gguf_spec(family, tied_head=tied))
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights), cache_dir=tmp_path)
    assert checkpoint.spec.norm_eps == pytest.approx(weights.spec.norm_eps, rel=1e-6)  # float32 in the file
    assert checkpoint.spec == tiny_spec(family, **GGUF_SIZES, tied_head=tied, norm_eps=checkpoint.spec.norm_eps)
    assert checkpoint.dtype_name == "F32"
    for name, tensor in weights.tensors.items():
        assert checkpoint.has_tensor(name)
        assert torch.equal(checkpoint.tensor(name), tensor), name
    assert checkpoint.has_tensor("head.weight") is not tied


# Largest error, in steps of a value's own block: half a step, and a little for the rounded scale.
@pytest.mark.parametrize(
    ("quantisation", "steps"), [("F16", 0), ("BF16", 0), ("Q8_0", 127), ("Q5_1", 31), ("Q4_1", 15)]
)
def test_quantised_tensors_come_out_near_what_went_in(tmp_path, quantisation, steps):
    weights = TinyWeights(gguf_spec())
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights, quantisation), cache_dir=tmp_path)
    assert checkpoint.dtype_name == quantisation
    for name, tensor in weights.tensors.items():
        got = checkpoint.tensor(name)
        assert got.dtype == torch.float32
        assert got.shape == tensor.shape
        if tensor.dim() == 1:
            assert torch.equal(got, tensor)
        elif steps == 0:
            assert torch.equal(got, tensor.to(torch.float16 if quantisation == "F16" else torch.bfloat16).float())
        else:
            blocks = tensor.reshape(-1, 32)
            spread = blocks.abs().amax(1) if quantisation == "Q8_0" else blocks.amax(1) - blocks.amin(1)
            error = (got - tensor).reshape(-1, 32).abs().amax(1)
            assert (error <= spread / steps * 0.51 + 2e-3).all(), name


def test_q4_1_blocks_are_read_by_the_rule(tmp_path):
    """A block is scale, minimum, then 16 bytes: low halves are values 0 to 15, high halves 16 to 31."""
    weights = TinyWeights(gguf_spec())
    rng = np.random.default_rng(0)
    rows, blocks = weights.spec.intermediate_size, weights.spec.hidden_size // 32
    scale, least = rng.random((2, rows, blocks)).astype(np.float16)
    packed = rng.integers(0, 256, (rows, blocks, 16), dtype=np.uint8)
    raw = np.concatenate([scale[..., None].view(np.uint8), least[..., None].view(np.uint8), packed], axis=-1).reshape(
        rows, -1
    )
    path = write_gguf(tmp_path / "m.gguf", weights, raw_tensors={"layers.1.up.weight": (raw, "Q4_1")})
    got = open_checkpoint(path, cache_dir=tmp_path).tensor("layers.1.up.weight").numpy()
    for row, column in [(0, 0), (0, 15), (0, 16), (5, 31), (7, 40), (95, 63)]:
        block, place = divmod(column, 32)
        byte = int(packed[row, block, place % 16])
        value = byte & 15 if place < 16 else byte >> 4
        assert got[row, column] == np.float32(scale[row, block]) * value + np.float32(least[row, block])


def test_k_quantisations_are_read(tmp_path):
    """Blocks of 256 that are one scale for all values: then a value is scale times its 4-bit number."""
    weights = TinyWeights(gguf_spec(intermediate_size=256))
    rng = np.random.default_rng(0)
    rows = weights.spec.hidden_size
    packed = rng.integers(0, 256, (rows, 128), dtype=np.uint8)
    head = np.concatenate([np.array([0.5, 0.0], np.float16).view(np.uint8), np.array([1] * 4 + [0] * 4, np.uint8)])
    # the last four of the twelve bytes carry the scales 4 to 7 in their low halves
    raw = np.concatenate([np.tile(np.concatenate([head, np.full(4, 1, np.uint8)]), (rows, 1)), packed], axis=1)
    path = write_gguf(tmp_path / "m.gguf", weights, raw_tensors={"layers.0.down.weight": (raw, "Q4_K")})
    got = open_checkpoint(path, cache_dir=tmp_path).tensor("layers.0.down.weight").numpy()
    # 64 values share 32 bytes: first the low halves, then the high ones
    expected = np.concatenate(
        [np.concatenate([part & 15, part >> 4], axis=1) for part in np.split(packed, 4, axis=1)], axis=1
    )
    assert np.array_equal(got, 0.5 * expected.astype(np.float32))


def test_the_tables_of_types_agree_with_the_library():
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: entry for number, entry in theirs.items() if number in TENSOR_TYPES} == TENSOR_TYPES
    for name, block, block_bytes in TENSOR_TYPES.values():
        data = np.zeros((1, block_bytes), dtype=np.uint8)
        if name in QUANTISATIONS:
            assert gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).shape == (1, block)
        else:
            with pytest.raises(NotImplementedError):
                gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])


def published_factors(theta, head_dim, factor, low, high, original):
    """Llama 3's rule in the words of its publication: by wavelength."""
    result = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi / theta ** -(2 * i / head_dim)
        if wavelength < original / high:
            result.append(1.0)
        elif wavelength > original / low:
            result.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(result, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_table_of_llama_3_becomes_its_scaling(tmp_path, factor):
    weights = TinyWeights(gguf_spec(head_dim=32, rope=RopeSpec(theta=5e5)))
    table = published_factors(5e5, 32, factor, 1.0, 4.0, 8192)
    path = write_gguf(tmp_path / "m.gguf", weights, extra_tensors={"rope_freqs.weight": table})
    rope = open_checkpoint(path, cache_dir=tmp_path).spec.rope
    known = Llama3RopeScaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=8192)
    assert rope == RopeSpec(theta=5e5, llama3=known)


def test_other_constants_of_the_same_rule_are_found(tmp_path):
    """Only ratios of the constants matter, so what is found must make the same table."""
    weights = TinyWeights(gguf_spec(head_dim=64, rope=RopeSpec(theta=5e5)))
    table = published_factors(5e5, 64, 4.0, 1.0, 16.0, 4096)
    path = write_gguf(tmp_path / "m.gguf", weights, extra_tensors={"rope_freqs.weight": table})
    found = open_checkpoint(path, cache_dir=tmp_path).spec.rope.llama3
    again = published_factors(
        5e5, 64, found.factor, found.low_freq_factor, found.high_freq_factor, found.original_context_len
    )
    assert np.allclose(again, table, rtol=1e-3)


def test_rope_tables_of_no_known_rule_are_refused_and_of_ones_are_nothing(tmp_path):
    weights = TinyWeights(gguf_spec())
    ones, other = np.ones(8, np.float32), np.linspace(1, 3, 8, dtype=np.float32)[::-1].copy()
    path = write_gguf(tmp_path / "m.gguf", weights, extra_tensors={"rope_freqs.weight": ones})
    assert open_checkpoint(path, cache_dir=tmp_path).spec.rope.llama3 is None
    path = write_gguf(tmp_path / "n.gguf", weights, extra_tensors={"rope_freqs.weight": other})
    with pytest.raises(UnsupportedModelError, match="rope_freqs.weight"):
        open_checkpoint(path, cache_dir=tmp_path)


def test_linear_scaling_and_windows_are_read(tmp_path):
    options = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "attention.sliding_window": 100}
    path = write_gguf(tmp_path / "m.gguf", TinyWeights(gguf_spec()), metadata=options)
    spec = open_checkpoint(path, cache_dir=tmp_path).spec
    assert spec.rope.linear_factor == 4.0
    assert [layer.window for layer in spec.layers] == [100] * spec.num_layers


def test_the_end_tokens_of_chats_count(tiny_gguf, tmp_path):
    """2 is the file's end token <|im_end|>; 0, <|endoftext|>, is a control token that ends texts."""
    assert open_checkpoint(tiny_gguf, cache_dir=tmp_path).eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rope.scaling.type": "ntk"}, "rope scaling 'ntk'.*none, linear, yarn, longrope, llama3"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"split.count": 2}, "2 parts of a split file"),
        ({"rope.dimension_count": 8}, "16 dimensions, 8 of them rotated"),
        ({"attention.scale": 0.5}, r"attention\.scale"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, options, words):
    path = write_gguf(tmp_path / "m.gguf", TinyWeights(gguf_spec()), metadata=options)
    with pytest.raises(UnsupportedModelError, match=words):
        open_checkpoint(path, cache_dir=tmp_path)


def test_other_architectures_versions_and_byte_orders_are_named(tiny_gguf, tmp_path):
    content = tiny_gguf.read_bytes()
    place = content.index(b"general.architecture") + len(b"general.architecture") + 4 + 8
    assert content[place : place + 5] == b"llama"
    for position, new, words in [
        (place, b"mamba", "architecture 'mamba'.*supported: llama, .*qwen2, qwen3"),
        (4, struct.pack("<I", 1), "version 1; supported: 2, 3"),
        (4, struct.pack(">I", 3), "big-endian"),
    ]:
        tiny_gguf.write_bytes(content[:position] + new + content[position + len(new) :])
        with pytest.raises(UnsupportedModelError, match=words):
            open_checkpoint(tiny_gguf, cache_dir=tmp_path)


def test_a_quantisation_that_cannot_be_read_is_named(tmp_path):
    weights = TinyWeights(gguf_spec())
    raw = np.zeros((96, 64 // 32 * 40), dtype=np.uint8)
    path = write_gguf(tmp_path / "m.gguf", weights, raw_tensors={"layers.0.up.weight": (raw, "Q8_1")})
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight.*Q8_1.*supported: .*Q4_K"):
        open_checkpoint(path, cache_dir=tmp_path)


def test_tensors_that_are_missing_misshapen_or_would_be_left_out_are_named(tmp_path):
    weights = TinyWeights(gguf_spec())
    path = write_gguf(tmp_path / "a.gguf", weights, metadata={"block_count": 3})
    with pytest.raises(CheckpointError, match=r"lacks 9 .*blk\.2"):
        open_checkpoint(path, cache_dir=tmp_path)
    path = write_gguf(tmp_path / "b.gguf", weights, metadata={"feed_forward_length": 80})
    with pytest.raises(CheckpointError, match=r"ffn_gate.weight has shape \[96, 64\], .* \[80, 64\]"):
        open_checkpoint(path, cache_dir=tmp_path)
    extra = {"blk.1.attn_output.bias": np.zeros(64, np.float32)}
    path = write_gguf(tmp_path / "c.gguf", weights, extra_tensors=extra)
    with pytest.raises(CheckpointError, match=r"blk\.1\.attn_output\.bias"):
        open_checkpoint(path, cache_dir=tmp_path)


def test_a_file_cut_anywhere_is_refused_at_open(tiny_gguf, tmp_path):
    content = tiny_gguf.read_bytes()
    for length in [0, 3, 4, 7, 8, 23, 24, 25, *range(31, len(content), 997), len(content) - 64]:
        tiny_gguf.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"tiny\.gguf.*(fetch it again|holds no whole model)"):
            open_checkpoint(tiny_gguf, cache_dir=tmp_path)


def test_damage_in_the_header_never_ends_in_anything_but_an_error_of_ours(tiny_gguf, tmp_path):
    """Flip one byte of the header at a time: the file opens or is refused, and nothing else happens."""
    content = tiny_gguf.read_bytes()
    header_len = content.index(b"output_norm.weight") + 64
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[rng.integers(header_len)] ^= 1 << rng.integers(8)
        tiny_gguf.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(tiny_gguf, cache_dir=tmp_path)
            assert checkpoint.eos_token_ids is not None
        except LoadError:
            refused += 1
    assert refused > 20  # most of the header is the vocabulary, whose letters nothing can check


def test_the_fingerprint_is_the_sha_256_of_the_file(tiny_gguf, tmp_path):
    import hashlib

    expected = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    assert open_checkpoint(tiny_gguf, cache_dir=tmp_path / "cache").fingerprint == expected
    with tiny_gguf.open("ab") as file:
        file.write(b"\0")
    assert open_checkpoint(tiny_gguf, cache_dir=tmp_path / "cache").fingerprint != expected
