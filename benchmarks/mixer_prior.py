"""What the mixer of `memory` begins with, learned over recorded answers: writes `src/foreword/draft/memory/mixer_prior.py`.

    python -m benchmarks.mixer_prior answers.jsonl      (of `benchmarks.stream_requests`)

All kinds take turns, 25 requests each, with a memory of their own and one mixer. Numbers alone are kept: what a source's word was
worth and how far sources repeat each other, nothing of any text.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.stream import Stream
from benchmarks.stream_requests import KINDS, NUM_REQUESTS, read_answers
from foreword.draft.lookup.ngram_lm import table_of
from foreword.draft.memory import mixer_prior
from foreword.draft.memory.drafter import DEFAULT_BYTES, MemoryDrafter
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.mixer import CELLS, NUM_SETS, NUM_SOURCES, Mixer
from foreword.engine.llm import load_model
from foreword.target.target import Target

_TURN, _NUM_NODES = 25, 8
_HEAD = '''"""What the mixer begins with, learned over six kinds of requests: written by `python -m benchmarks.mixer_prior`."""

'''


def trained(by_kind: dict[str, list], target: Target) -> Mixer:
    """One mixer over all kinds."""
    mixer, streams = Mixer(), {}
    mixer.state = neutral()
    for kind in by_kind:
        memory = Memory(DEFAULT_BYTES, target.spec.vocab_size)
        memory.mixer = mixer
        streams[kind] = Stream(MemoryDrafter(memory, table_of(target)), _NUM_NODES)
    for first in range(0, NUM_REQUESTS, _TURN):
        for kind, pairs in by_kind.items():
            for pair in pairs[first : first + _TURN]:
                streams[kind].run(pair)
    return mixer


def neutral() -> np.ndarray:
    """A mixer that has learned nothing: all sources weigh alike, and the firmer a word the likelier it comes true."""
    shares = [0.02, *(0.05 + 0.8 * cell / CELLS for cell in range(1, CELLS))] * NUM_SOURCES
    return np.asarray([0.35] * NUM_SETS * NUM_SOURCES + [0.0] * NUM_SETS + shares + [3.0] * len(shares))


def module(mixer: Mixer) -> str:
    """The source of the module."""
    state, text = mixer.state, _HEAD
    num_weights = NUM_SETS * NUM_SOURCES
    parts = {
        "WEIGHTS": state[:num_weights].reshape(NUM_SETS, NUM_SOURCES),  # a row for each set, a number for each source
        "BIASES": state[num_weights : num_weights + NUM_SETS].reshape(1, NUM_SETS),
        "SHARES": state[num_weights + NUM_SETS :][: NUM_SOURCES * CELLS].reshape(2 * NUM_SOURCES, CELLS // 2),
    }
    for name, rows in parts.items():
        lines = "".join(f'    "{" ".join(f"{value:.3f}" for value in row)}",\n' for row in rows)
        text += f"{name} = (\n{lines})\n"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    rows = read_answers(parser.parse_args(arguments).answers)
    by_kind = {
        kind: [(row["prompt"], row["answer"]) for row in rows if row["kind"] == kind and row["answer"]]
        for kind in KINDS
    }
    model = load_model()
    text = module(trained(by_kind, Target(model.decoder, model)))
    Path(mixer_prior.__file__).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
