"""`tools/progress.sh`, which shows that an installation is alive."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "progress.sh"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script for make")


def run(tmp_path, command: str) -> subprocess.CompletedProcess[str]:
    line = ["sh", str(SCRIPT), "1", str(tmp_path / "log"), "sh", "-c", command]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_line_while_it_works_and_the_output_in_a_file(tmp_path):
    done = run(tmp_path, "echo collecting; echo downloading torch; sleep 1.5; echo installed")
    assert done.returncode == 0
    first, *others = done.stdout.splitlines()
    assert first.split() == ["1", "s", "downloading", "torch"]
    assert len(others) <= 1
    assert (tmp_path / "log").read_text().splitlines()[-1] == "installed"


def test_a_failure_keeps_its_code_and_shows_the_end_of_the_output(tmp_path):
    done = run(tmp_path, "echo cannot find the compiler >&2; exit 3")
    assert done.returncode == 3
    assert "cannot find the compiler" in done.stderr
