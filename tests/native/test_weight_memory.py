"""What a large model's weights take: converted tensor by tensor, and shared by processes that map them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_model import write_model
from foreword import LLM, SamplingParams
from foreword.errors import ConfigError
from tests.support.tiny_llm import write_tiny_llm

kernels = pytest.importorskip("foreword_kernels", reason="the native kernels are not installed")

STATUS = Path("/proc/self/status")
needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="this system does not say what a process holds")
MIB = 1 << 20
SIZES = {"hidden": 512, "intermediate": 2048, "layers": 4, "heads": 8, "kv_heads": 2, "vocab": 8192}

CONVERT = """
import sys
from pathlib import Path
from foreword.checkpoint.opened import open_checkpoint
from foreword.runtime.native_runtime import NativeRuntime

def held():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("RssFile", "VmHWM")}

folder, cache = map(Path, sys.argv[1:])
import torch, numpy, safetensors, foreword_kernels
checkpoint = open_checkpoint(folder, cache_dir=cache)
before = held()
decoder = NativeRuntime("int8", 1, cache).decoder(checkpoint.spec, checkpoint)
after = held()
print(decoder.num_weight_bytes, after["RssFile"] - before["RssFile"], after["VmHWM"] - before["VmHWM"])
"""


def held(name: str) -> int:
    """Bytes of this process, by the system's name."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


@needs_proc
def test_a_conversion_holds_a_layer_and_not_the_model(tmp_path):
    """The files were mapped until the model was gone, so that all of them counted as its memory."""
    write_model(tmp_path / "model", SIZES)
    source = sum(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors"))
    command = [sys.executable, "-c", CONVERT, str(tmp_path / "model"), str(tmp_path / "cache")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    weights, of_files, peak = map(int, told)
    assert of_files < source / 4, f"{of_files / MIB:.0f} MiB of the {source / MIB:.0f} MiB of files stay mapped"
    assert peak < weights + source, f"the peak was {peak / MIB:.0f} MiB beside {weights / MIB:.0f} MiB of weights"


@needs_proc
@pytest.mark.parametrize("is_shared", [False, True])
def test_mapped_weights_take_no_memory_of_their_own(tmp_path, is_shared):
    path = tmp_path / "weights"
    path.write_bytes(b"\x01" * (64 * MIB))
    before = held("RssAnon")
    data = kernels.WeightBytes(str(path), 4096, 64 * MIB, is_shared=is_shared)
    added = held("RssAnon") - before
    assert (added < 8 * MIB) == is_shared, f"{added / MIB:.0f} MiB"
    del data


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_shared_weights_say_the_same(tmp_path, dtype):
    folder = write_tiny_llm(tmp_path).target
    answers = []
    for share in (False, True):
        with LLM(
            folder, "none", runtime="native", dtype=dtype, threads=1, cache_dir=tmp_path, share_weights=share
        ) as llm:
            answers.append(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=12, logprobs=1))[0])
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].logprobs == answers[1].logprobs


def test_only_the_native_runtime_shares(tmp_path):
    with pytest.raises(ConfigError, match="share_weights is for the native runtime"):
        LLM(write_tiny_llm(tmp_path).target, runtime="torch", share_weights=True)
