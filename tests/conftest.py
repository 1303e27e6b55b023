"""One torch thread and fixed hypothesis settings, so that a run is quick on a busy machine and repeats."""

import os
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

from foreword.adapt import timing
from tests.support.tiny_llm import write_tiny_llm

torch.set_num_threads(1)
timing._ROUNDS = timing._CHECK_ROUNDS = (1, 1)  # what passes cost decides how fast a test's words come, never which
settings.register_profile("foreword", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("foreword")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Data kept beside the repository; a test that needs it skips where it is missing."""
    if not SHARED.is_dir():
        pytest.skip(f"the shared data folder is not at {os.path.relpath(SHARED)}")
    return SHARED


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A tiny model as files, with a tokenizer and a chat template."""
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(files):
    """The same, loaded."""
    return files.load()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """foreword's cache is the test's own: nothing of this machine is found in it."""
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def without_shape_checks():
    """No shape checks at calls: they would be most of the time where a test makes a million calls; other tests keep them."""
    was_off = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", was_off)
