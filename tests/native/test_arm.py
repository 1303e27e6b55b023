"""The kernels for ARM in an emulator, and the check's own program on this machine's paths. A minute of compiling."""

import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.slow
def test_whole_passes_on_arm_have_the_bits_of_the_portable_path() -> None:
    missing = [tool for tool in ("c++", "aarch64-linux-gnu-g++", "qemu-aarch64") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: the packages g++-aarch64-linux-gnu and qemu-user")
    script = ["sh", str(KERNELS / "check_arm.sh")]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("check_")] == ["check_paths", "check_passes"]
    assert sum(line.startswith("ARM:  dotprod portable ") for line in lines) == 2
