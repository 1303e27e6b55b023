"""Random combinations of prompts, options, drafters and batches against plain decoding: `make fuzz`.

    python -m benchmarks.fuzz [--count 5000] [--first 0]

Every 25 numbers share a shape of model (0 to 24 the plain one) and a number of threads.

From the root of the repository. Prints what differs, each as the command that repeats it, and exits with 1 if anything does.
Differences that are proven near-ties (torch computes a wide pass with other last bits) are counted and printed too.
"""

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

from foreword.runtime.select import native_problem
from tests.support.fuzz import RUNTIMES, Count, check, make_combo
from tests.support.model_shapes import tiny_shape
from tests.support.tiny_llm import TinyFiles, write_tiny_llm

BLOCK = 25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    count, start_s = Count(), time.perf_counter()
    last = args.first + args.count
    for block in range(args.first // BLOCK, (last - 1) // BLOCK + 1):
        numbers = range(max(args.first, block * BLOCK), min(last, (block + 1) * BLOCK))
        with tempfile.TemporaryDirectory() as folder:
            _run(numbers, write_tiny_llm(Path(folder), tiny_shape(block)), count, is_shown=args.count == 1)
    report = {
        "combos": args.count, "calls": count.calls, "refused": count.refused,
        "tokens": count.tokens, "drafted": count.drafted, "accepted": count.accepted,
        "near_ties": len(count.near_ties), "faults": len(count.faults), "seconds": round(time.perf_counter() - start_s, 1),
        "calls_drafted_accepted": count.by_drafter,
    }  # fmt: skip
    print(json.dumps(report))
    return 1 if count.faults else 0


def _run(numbers: Iterable[int], files: TinyFiles, count: Count, *, is_shown: bool) -> None:
    """All combinations over models of one shape."""
    problem, threads = native_problem(), 1 + files.shape.number % 2
    models = {name: files.load(name, threads) for name in RUNTIMES if name == "torch" or not problem}
    for number in numbers:
        combo, known = make_combo(number, files), len(count.faults) + len(count.near_ties)
        if is_shown:
            print(files.shape, combo, combo.params, combo.drafting, sep="\n")
        if combo.runtime in models:
            try:
                check(combo, models[combo.runtime], count)
            except Exception as error:
                count.faults.append(
                    f"python -m benchmarks.fuzz --first {number} --count 1   # {combo}; raised {error!r}\n"
                    + "".join(traceback.format_tb(error.__traceback__)[-4:])
                )
        for line in [*count.near_ties, *count.faults][known:]:
            print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
