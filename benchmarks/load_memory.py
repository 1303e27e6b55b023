"""Memory and time of converting a model, of starting from the converted file, and of two processes at once.

    python benchmarks/load_memory.py MODEL --dtype int4 --out load_memory.json
    python benchmarks/load_memory.py MODEL --dtype int4 --limit-gb 8      # all in a memory cgroup, where one can be made

Each phase is a process of its own on an empty cache folder. Figures in GB: `peak` is the most that was resident (VmHWM), `anon`
what is the process's own at the end (RssAnon), `pss` its share when pages that several map are divided among them.
`peak_anon` is the most of its own memory, as sampled every 20 ms: what a limit cannot take back from it.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CGROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # the first version, the second
_LIMITS = ("memory.limit_in_bytes", "memory.max")


def status_gb(name: str) -> float:
    """A figure of this process's /proc/self/status."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e9 if found else 0.0


def pss_gb() -> float:
    """This process's share of the pages that it maps."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e9 if found else 0.0


class PeakAnon:
    """The most anonymous memory of this process while the block runs."""

    def __enter__(self) -> "PeakAnon":
        self.gb, self._ends = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ends.wait(0.02):
            self.gb = max(self.gb, status_gb("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def child(model: str, dtype: str, num_tokens: int, waits: bool, shares: bool) -> None:
    """Load, write some tokens, print the figures; where it waits, twice: when all are ready, and told so on standard input."""
    from foreword import LLM, SamplingParams, load_model

    begin_s = time.perf_counter()
    before = status_gb("RssAnon")
    with PeakAnon() as watched:
        llm = LLM(load_model(model, runtime="native", dtype=dtype, share_weights=shares), "none")
        load_s = time.perf_counter() - begin_s
        first = llm.generate("Once upon a time", SamplingParams(max_tokens=1))[0]
        first_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        answer = llm.generate("Once upon a time", SamplingParams(max_tokens=num_tokens, ignore_eos=True))[0]
        speed = len(answer.token_ids) / (time.perf_counter() - begin_s)
    if waits:
        print("ready", flush=True)
        sys.stdin.readline()
    figures = {
        "load_s": load_s, "first_token_s": first_s, "tokens_per_s": speed, "before": before, "peak": status_gb("VmHWM"),
        "peak_anon": watched.gb, "anon": status_gb("RssAnon"), "file": status_gb("RssFile"), "pss": pss_gb(),
    }  # fmt: skip
    print(
        json.dumps({**{name: round(x, 3) for name, x in figures.items()}, "ids": [*first.token_ids, *answer.token_ids]})
    )
    if waits:
        sys.stdout.flush()
        sys.stdin.readline()


@contextlib.contextmanager
def memory_limit(limit_gb: float | None) -> Iterator[Path | None]:
    """A cgroup of so much memory, with all that this process starts; None without a limit. OSError where none can be made."""
    if limit_gb is None:
        yield None
        return
    root = next(folder for folder in _CGROUPS if (folder / "cgroup.procs").exists())
    group = root / f"foreword-{os.getpid()}"
    group.mkdir()
    try:
        name = next(name for name in _LIMITS if (group / name).exists())
        (group / name).write_text(str(int(limit_gb * 1e9)))
        yield group
    finally:
        group.rmdir()


def start(args: argparse.Namespace, cache: Path, group: Path | None, *, waits: bool = False) -> "subprocess.Popen[str]":
    """A child, in the cgroup from its first moment."""
    command = [sys.executable, __file__, args.model, "--dtype", args.dtype, "--tokens", str(args.tokens), "--child"]
    enter = None if group is None else (lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    return subprocess.Popen(
        [*command, *(["--waits"] if waits else []), *(["--share-weights"] if args.share_weights else [])],
        env={**os.environ, "FOREWORD_CACHE": str(cache)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=enter,
    )  # fmt: skip


def figures_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What a child prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process ended with {process.wait()} and printed nothing")
    return json.loads(line)


def tell(process: "subprocess.Popen[str]") -> None:
    """Let a waiting child go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(args: argparse.Namespace, cache: Path, group: Path | None) -> dict[str, Any]:
    """All three phases."""
    found: dict[str, Any] = {
        "model": Path(args.model).name,
        "dtype": args.dtype,
        "limit_gb": args.limit_gb,
        "shares": args.share_weights,
    }
    for phase in ("convert", "start"):
        process = start(args, cache, group)
        found[phase] = figures_of(process)
        process.wait()
        print(phase, {k: v for k, v in found[phase].items() if k != "ids"}, flush=True)
    found["packed"] = round(sum(file.stat().st_size for file in (cache / "native").glob("*.fwk")) / 1e9, 3)
    pair = [start(args, cache, group, waits=True) for _ in range(2)]
    for process in pair:
        assert process.stdout is not None
        process.stdout.readline()
    for process in pair:
        tell(process)
    found["two"] = [figures_of(process) for process in pair]
    for process in pair:
        tell(process)
        process.wait()
    ids = [found["convert"], found["start"], *found["two"]]
    found["same_tokens"] = all(each.pop("ids") == ids[-1].get("ids") for each in ids[:-1])
    ids[-1].pop("ids")
    if group is not None:
        found["failcnt"] = _int(group / "memory.failcnt")
    return found


def _int(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


def main(arguments: list[str]) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="int4", choices=("int4", "int8"))
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--limit-gb", type=float)
    parser.add_argument("--share-weights", action="store_true")
    parser.add_argument("--cache", type=Path, help="keep the cache here (else in a temporary folder)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        child(args.model, args.dtype, args.tokens, args.waits, args.share_weights)
        return 0
    with contextlib.ExitStack() as stack:
        cache = args.cache or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = measure(args, cache, stack.enter_context(memory_limit(args.limit_gb)))
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
