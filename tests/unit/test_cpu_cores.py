"""Cores as the system describes them, on made-up trees of /sys/devices."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreword.cli.commands.doctor import cores_text
from foreword.cli.main import app
from foreword.runtime.cpu_cores import Core, find_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_cpu(root: Path, cpu: int, siblings: str, khz: int | None) -> None:
    at = root / "system" / "cpu" / f"cpu{cpu}"
    write(at / "topology" / "thread_siblings_list", siblings)
    if khz is not None:
        write(at / "cpufreq" / "cpuinfo_max_freq", str(khz))


def intel_hybrid(root: Path) -> Path:
    """Two P cores of two threads, four E cores."""
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        add_cpu(root, cpu, siblings, 4_900_000)
    for cpu in range(4, 8):
        add_cpu(root, cpu, str(cpu), 3_600_000)
    write(root / "cpu_core" / "cpus", "0-3")
    write(root / "cpu_atom" / "cpus", "4-7")
    return root


def test_intel_says_which_cores_are_which(tmp_path: Path) -> None:
    cores = find_cores(range(8), intel_hybrid(tmp_path))
    assert [core.kind for core in cores] == ["P", "P", "E", "E", "E", "E"]
    assert cores[0] == Core((0, 1), "P", 4900)
    assert cores_text(cores, 8, None) == "6 physical: 2 P (4.9 GHz, 2 threads each), 4 E (3.6 GHz)"


def test_affinity_leaves_some_out(tmp_path: Path) -> None:
    cores = find_cores([1, 6], intel_hybrid(tmp_path))
    assert [(core.cpus, core.kind) for core in cores] == [((1,), "P"), ((6,), "E")]
    assert cores_text(cores, 8, None) == "2 physical: 1 P (4.9 GHz), 1 E (3.6 GHz); may run on 2 of 8 logical cores"


def test_frequencies_tell_cores_of_arm_apart(tmp_path: Path) -> None:
    for cpu, khz in enumerate([1_800_000] * 4 + [2_800_000] * 4):
        add_cpu(tmp_path, cpu, str(cpu), khz)
    assert "".join(core.kind for core in find_cores(range(8), tmp_path)) == "EEEEPPPP"


@pytest.mark.parametrize("speeds", [[5_000_000, 4_900_000], [None, None], [3_000_000, None]])
def test_cores_that_are_alike_or_unknown_have_no_kind(tmp_path: Path, speeds: list[int | None]) -> None:
    for cpu, khz in enumerate(speeds):
        add_cpu(tmp_path, cpu, str(cpu), khz)
    assert [core.kind for core in find_cores(range(2), tmp_path)] == ["", ""]


@pytest.mark.parametrize("damaged", ["", "x-3", "0-y", ",,"])
def test_a_damaged_list_is_no_list(tmp_path: Path, damaged: str) -> None:
    root = intel_hybrid(tmp_path)
    write(root / "cpu_core" / "cpus", damaged)
    assert [core.kind for core in find_cores([0, 4], root)] == ["P", "E"]  # by frequency


def test_where_nothing_is_known_every_thread_is_a_core(tmp_path: Path) -> None:
    assert find_cores([0, 1, 5], tmp_path) == [Core((0,)), Core((1,)), Core((5,))]
    assert cores_text(find_cores([0, 1], tmp_path), 2, 1.5) == "2 physical; the container grants the time of 1.5"


def test_doctor_names_them() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert " physical" in result.output
