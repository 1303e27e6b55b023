"""A process with a model in it forks, and ends while passes run: in a process of its own, where it may not hang or crash."""

import importlib.util
import os
import subprocess
import sys

import pytest

HAS_KERNELS = importlib.util.find_spec("foreword_kernels") is not None
CONFIGURATIONS = [("torch", 2), ("native", 1), ("native", 2)]

PRELUDE = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")  # that a process with threads forks, which is what is tried here
from foreword import LLM, ClosedError, SamplingParams

folder, runtime, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
params = SamplingParams(max_tokens=20, ignore_eos=True)
LONG = SamplingParams(max_tokens=100, ignore_eos=True)
llm = LLM(folder, "ngram", runtime=runtime, threads=threads, cache_dir=folder + "/cache")

def answer():
    return llm.generate([[1, 2, 3], [4, 5]], params)[0].token_ids

def for_ever():
    try:
        while True:
            answer()
    except ClosedError:
        pass
"""

FORK = """
expected = answer()  # the engine's thread runs, and sleeps again
while not llm._loop._is_asleep:
    pass
child = os.fork()
if child == 0:
    os._exit(0 if answer() == expected and list(llm.stream([1], params)) else 1)
assert os.waitpid(child, 0)[1] == 0, "the child of an idle parent"

thread = threading.Thread(target=for_ever, daemon=True)
stream = llm.stream([7], LONG)
next(stream)
thread.start()
while llm._loop._is_asleep:
    pass
child = os.fork()
if child == 0:
    told = 0
    if llm._loop._refusal is None:  # the fork came between two answers
        told = 2 * (answer() == expected)
    else:
        for call in (answer, lambda: list(stream)):
            try:
                call()
            except ClosedError as error:
                told += "was forked while this LLM was answering" in str(error)
    os._exit(0 if told else 1)
assert os.waitpid(child, 0)[1] == 0, "the child of a parent at work"
assert answer() == expected, "the parent goes on"
"""

END = """
streams = [llm.stream([n], LONG) for n in (7, 8)]
for stream in streams:
    next(stream)
for _ in range(2):
    threading.Thread(target=for_ever, daemon=True).start()
print("the end")
"""


def run(program, files, runtime, threads):
    if runtime == "native" and not HAS_KERNELS:
        pytest.skip("the native kernels are not built")
    command = [sys.executable, "-c", PRELUDE + program, str(files.target), runtime, str(threads)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize(("runtime", "threads"), CONFIGURATIONS)
def test_a_process_forks_and_ends_cleanly_while_passes_run(files, runtime, threads):
    """One process for both, since each has to load everything."""
    done = run((FORK if hasattr(os, "fork") else "") + END, files, runtime, threads)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


def test_a_process_ends_cleanly_while_the_thread_of_a_forgotten_model_lets_go_of_it():
    """Letting go of tensors gives up the interpreter again and again, so that it can end in the middle."""
    program = """
import weakref
import torch
from foreword.sampling.params import SamplingParams
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import byte_tokenizer, toy_llm

tokenizer = byte_tokenizer("hello")
llm = toy_llm(ToyDecoder(vocab_size=tokenizer.vocab_size), tokenizer)
llm.engine.many = [torch.zeros(3) for _ in range(100_000)]
llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
gone = []
loop = weakref.ref(llm._loop, gone.append)  # told before its parts are let go
del llm
while not gone:
    pass
print("the end")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
