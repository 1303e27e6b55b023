"""Put the table of a checked-in result between the markers of the README.

    python -m benchmarks.readme_table [RESULT.json] [README.md]

A test holds the README to the result.
"""

import json
import sys
from pathlib import Path

from foreword.bench.markdown import markdown

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "reports" / "spec_bench.json"
BEGIN, END = "<!-- made by benchmarks/readme_table.py: begin -->", "<!-- end -->"


def with_table(readme: str, result: Path = RESULT) -> str:
    """The README's text with the table of a result."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README lacks the markers {BEGIN} and {END}")
    table = markdown(json.loads(result.read_text(encoding="utf-8")))
    return f"{head}{BEGIN}\n{table}{END}{tail}"


def main() -> None:
    result = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    readme = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
