"""What the native runtime loses on a machine that others use too.

    python benchmarks/busy.py --model MODEL --out busy.json      # on a quiet machine; it makes the noise itself

    busy        T(1) and T(8) on as many threads as cores, beside one busy process a core, over their quiet values
    many        the same on four times as many threads as cores, quiet, over as many threads as cores
    together    three engines in three processes: the sum of their speeds over one's alone

Rounds of quiet and noisy passes alternate, so that the machine's own moods hit both. Busy processes are stopped (SIGSTOP) where
it should be quiet, and go on where it should not.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foreword.runtime.base import Decoder
from foreword.runtime.native_threads import default_threads
from foreword.runtime.timed_passes import time_passes
from foreword.target.load_model import load_model

WIDTHS, CONTEXT = (1, 8), 256
_SETTLE_S = 0.2  # after noise begins or ends


class Noise:
    """Processes that do nothing but run, one a core; stopped except inside `going`."""

    def __init__(self, count: int) -> None:
        self._processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)
        time.sleep(_SETTLE_S)

    @contextmanager
    def going(self) -> Iterator[None]:
        """While the block runs."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """Stop them for good."""
        for process in self._processes:
            process.kill()
            process.wait()


def pass_times(decoder: Decoder) -> dict[int, float]:
    """Seconds of a pass, by its nodes."""
    found = time_passes(decoder, WIDTHS, (CONTEXT,), (5, 5))
    return {nodes: seconds for (nodes, _), seconds in found.items()}


def medians(rounds: Sequence[dict[int, float]]) -> dict[int, float]:
    """Of every width over the rounds."""
    return {n: statistics.median(each[n] for each in rounds) for n in WIDTHS}


def over(some: dict[int, float], base: dict[int, float]) -> dict[str, float]:
    """Ratios by width."""
    return {f"T({n})": round(some[n] / base[n], 3) for n in WIDTHS}


def measure_passes(model: str | None, dtype: str, num_rounds: int) -> dict[str, Any]:
    """Quiet, busy and with too many threads, in turn."""
    cores = default_threads()
    few, many = (load_model(model, runtime="native", dtype=dtype, threads=n).decoder for n in (cores, 4 * cores))
    noise = Noise(cores)
    times: dict[str, list[dict[int, float]]] = {"quiet": [], "busy": [], "many": []}
    try:
        for _ in range(num_rounds):
            times["quiet"].append(pass_times(few))
            with noise.going():
                times["busy"].append(pass_times(few))
            times["many"].append(pass_times(many))
    finally:
        noise.end()
    found = {name: medians(rounds) for name, rounds in times.items()}
    quiet_ms = {f"T({n})": round(1000 * seconds, 2) for n, seconds in found["quiet"].items()}
    return {
        "cores": cores,
        "quiet_ms": quiet_ms,
        "busy": over(found["busy"], found["quiet"]),
        "many": over(found["many"], found["quiet"]),
    }


def engine(model: str | None, dtype: str, seconds: float) -> None:
    """One engine of several: says when it is ready, and its tokens a second when it was told to run."""
    from foreword import LLM, SamplingParams

    llm = LLM(load_model(model, runtime="native", dtype=dtype), "none")
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    llm.generate("Once upon a time", params)
    print("ready", flush=True)
    for _ in sys.stdin:  # a line, a run
        begin_s, num_tokens = time.perf_counter(), 0
        while time.perf_counter() - begin_s < seconds:
            num_tokens += len(llm.generate("Once upon a time", params)[0].token_ids)
        print(num_tokens / (time.perf_counter() - begin_s), flush=True)


def measure_engines(arguments: Sequence[str], num_rounds: int) -> dict[str, Any]:
    """One alone and three together, in turn."""
    command = [sys.executable, __file__, *arguments, "--engine"]
    engines = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        for each in engines:
            _line(each)
        alone, together = [], []
        for _ in range(num_rounds):
            alone.append(_speeds(engines[:1])[0])
            together.append(sum(_speeds(engines)))
    finally:
        for each in engines:
            each.kill()
            each.wait()
    one, three = statistics.median(alone), statistics.median(together)
    return {
        "alone_tokens_per_s": round(one, 1),
        "together_tokens_per_s": round(three, 1),
        "together": round(three / one, 3),
    }


def _speeds(engines: "Sequence[subprocess.Popen[str]]") -> list[float]:
    for each in engines:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return [float(_line(each)) for each in engines]


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise SystemExit(f"an engine ended with {process.wait()} and said nothing")
    return line


def main(arguments: list[str]) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="int8", choices=("int4", "int8"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run of the engines")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.engine:
        engine(args.model, args.dtype, args.seconds)
        return 0
    found: dict[str, Any] = {"load_before": os.getloadavg()[0], "dtype": args.dtype}
    found |= measure_passes(args.model, args.dtype, args.rounds)
    found |= measure_engines(arguments, args.rounds)
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
