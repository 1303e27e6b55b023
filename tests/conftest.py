"""One torch thread and fixed hypothesis settings, so that a run is quick on a busy machine and repeats."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("foreword", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("foreword")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Data kept beside the repository; a test that needs it skips where it is missing."""
    if not SHARED.is_dir():
        pytest.skip(f"the shared data folder is not at {os.path.relpath(SHARED)}")
    return SHARED
