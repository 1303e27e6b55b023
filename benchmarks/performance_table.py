"""Put the figures of a checked-in result between the markers of README.md and docs/performance.md.

    python -m benchmarks.performance_table [RESULT.json]

The README gets one sentence, the performance page the table. A test holds both to the result.
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from foreword.bench.markdown import markdown

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "reports" / "spec_bench.json"
BEGIN, END = "<!-- made by benchmarks/performance_table.py: begin -->", "<!-- end -->"
_COLUMNS = 100


def sentence(result: dict[str, Any]) -> str:
    """What the default drafter gained, in the first mode of the result."""
    mode, facts, settings = result["summary"]["modes"][0], result["provenance"], result["settings"]
    rows = {row["label"]: row for row in mode["rows"]}
    plain, auto = rows["none"], rows["auto"]
    if auto["gate"]["status"] != "same":
        raise SystemExit("auto did not give the tokens of plain decoding: there is nothing to report")
    speed = auto["speedup"]
    return textwrap.fill(
        f"With the default drafter `auto`, the default model ({facts['model']}, {facts['runtime']} {facts['dtype']}) decoded "
        f"{speed['value']:.2f} times as fast as without a drafter (95 % interval {speed['low']:.2f} to {speed['high']:.2f}; "
        f"{auto['tok_per_s']['value']:.0f} against {plain['tok_per_s']['value']:.0f} tokens per second), with the same tokens in all "
        f"{auto['gate']['num_answers']} answers. {facts['machine']['cpu']['name']}, {settings['threads']} threads, "
        f"{mode['name']}, {facts['date']}:",
        _COLUMNS,
    )


PARTS = {ROOT / "README.md": lambda data: sentence(data) + "\n", ROOT / "docs" / "performance.md": markdown}


def with_part(page: str, part: str) -> str:
    """A page's text with another part between the markers."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page lacks the markers {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{part}{END}{tail}"


def main() -> None:
    data = json.loads((Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT).read_text(encoding="utf-8"))
    for path, part in PARTS.items():
        path.write_text(with_part(path.read_text(encoding="utf-8"), part(data)), encoding="utf-8")


if __name__ == "__main__":
    main()
