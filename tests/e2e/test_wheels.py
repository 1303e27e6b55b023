"""foreword without its source tree: the three wheels, built and used in an environment of their own."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"foreword": ROOT, "foreword-kernels": ROOT / "kernels", "foreword-drafters": ROOT / "checkpoints"}


# A source tree on PYTHONPATH would hide what is installed, and tell pip that foreword is there already.
VARIABLES = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def settings(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_packages_have_one_version_and_the_extras_ask_for_it():
    projects = {name: settings(folder) for name, folder in PACKAGES.items()}
    assert {name: project["name"] for name, project in projects.items()} == {name: name for name in PACKAGES}
    (version,) = {project["version"] for project in projects.values()}
    extras = projects["foreword"]["optional-dependencies"]
    assert extras["native"] == [f"foreword-kernels=={version}"]
    assert extras["drafters"] == [f"foreword-drafters=={version}"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with the wheels alone; torch and the like are those of the environment that tests run in."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # From a copy: nothing that an earlier build left beside the source may get into a wheel.
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, folder / "source", ignore=unwanted)
    places = [str(folder / "source" / package.relative_to(ROOT)) for package in PACKAGES.values()]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist")]
    subprocess.run([*build, *places], check=True, env=VARIABLES)
    shutil.rmtree(folder / "source")
    venv.create(folder / "venv", with_pip=False)
    wheels = sorted(map(str, (folder / "dist").glob("*.whl")))
    assert len(wheels) == len(PACKAGES)
    bin_folder = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    install = [*pip, "--python", str(bin_folder / "python"), "install", "--quiet", "--no-deps", *wheels]
    subprocess.run(install, check=True, env=VARIABLES)
    (site,) = (folder / "venv").rglob("site-packages")
    # A path alone: the editable install of the source tree beside these packages is not followed.
    (site / "others.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    return bin_folder


def run(environment: Path, *arguments: str) -> str:
    """What a command says, in a folder far from the source tree."""
    done = subprocess.run(
        [str(environment / arguments[0]), *arguments[1:]],
        capture_output=True,
        text=True,
        cwd=environment,
        env=VARIABLES,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheels_work_without_the_source_tree(environment):
    script = "import foreword, foreword_drafters, foreword_kernels as k; print(foreword.__file__, foreword_drafters.__file__, k.__file__)"
    places = run(environment, "python", "-c", script).split()
    assert all(str(environment.parent) in place for place in places), places
    facts = json.loads(run(environment, "foreword", "doctor", "--json"))
    assert facts["native"]["is_available"], facts["native"]["problem"]
    assert "smollm2-135m-ngram-lm" in facts["trained_drafters"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_auto_finds_its_table_there_and_the_demo_has_equal_tokens(environment, native_default_model):
    fingerprint = native_default_model.checkpoint.fingerprint
    script = f"from foreword.checkpoint.trained_drafters import trained_drafter; print(trained_drafter('ngram_lm', {fingerprint!r}))"
    assert str(environment.parent) in run(environment, "python", "-c", script)
    said = run(environment, "foreword", "demo", "--max-tokens", "24", "--runtime", "native")
    assert "same tokens: yes" in said
