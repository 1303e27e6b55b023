"""Random damage to the files of tiny models and drafters: `make fuzz-files`.

    python -m benchmarks.fuzz_files [--count 2000] [--first 0]

From the root of the repository. Prints every fault with the number that repeats it, and exits with 1 if there is one; a case
that takes longer than a minute is a fault too. `tests/support/damage.py` says what is damaged and what may come of it.
"""

import argparse
import json
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.support.damage import Outcome, Workshop

_MOST_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    kinds: Counter[str] = Counter()
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for number in range(args.first, args.first + args.count):
            signal.alarm(_MOST_S)
            outcome: Outcome = workshop.outcome(number)
            signal.alarm(0)
            kinds[outcome.kind] += 1
            if outcome.kind == "fault" or args.count == 1:
                print(f"{number}: {outcome.kind}: {outcome.what}: {outcome.message}", flush=True)
    print(json.dumps({"cases": args.count, **kinds, "seconds": round(time.perf_counter() - start_s, 1)}))
    return 1 if kinds["fault"] else 0


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"no end after {_MOST_S} s")


if __name__ == "__main__":
    raise SystemExit(main())
