"""Random combinations of prompts, options, drafters and batches against plain decoding: `make fuzz`.

    python -m benchmarks.fuzz [--count 2000] [--first 0]

From the root of the repository. Prints what differs, each as the command that repeats it, and exits with 1 if anything does.
Differences that are proven near-ties (torch computes a wide pass with other last bits) are counted and printed too.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from foreword.runtime.select import native_problem
from tests.support.fuzz import RUNTIMES, Count, check, make_combo
from tests.support.tiny_llm import write_tiny_llm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    count, start_s = Count(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_llm(Path(folder))
        problem = native_problem()
        models = {name: files.load(name) for name in RUNTIMES if name == "torch" or not problem}
        for number in range(args.first, args.first + args.count):
            combo, known = make_combo(number, files), len(count.faults) + len(count.near_ties)
            if args.count == 1:
                print(combo, combo.params, combo.drafting, sep="\n")
            if combo.runtime in models:
                check(combo, models[combo.runtime], count)
            for line in [*count.near_ties, *count.faults][known:]:
                print(line, flush=True)
    report = {
        "combos": args.count, "calls": count.calls, "tokens": count.tokens, "drafted": count.drafted, "accepted": count.accepted,
        "near_ties": len(count.near_ties), "faults": len(count.faults), "seconds": round(time.perf_counter() - start_s, 1),
        "calls_drafted_accepted": count.by_drafter,
    }  # fmt: skip
    print(json.dumps(report))
    return 1 if count.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
