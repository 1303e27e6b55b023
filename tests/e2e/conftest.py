"""What the end-to-end tests share."""

import os

import pytest

from foreword.engine.llm import load_model
from foreword.errors import LoadError
from foreword.runtime.select import native_problem

IS_SHARED = "PYTEST_XDIST_WORKER" in os.environ  # other tests run beside this one, a process a core


@pytest.fixture(scope="package")
def native_default_model():
    """The default model on the native runtime; skips where there is no such runtime, or no way to the model."""
    problem = native_problem()
    if problem:
        pytest.skip(problem)
    try:
        return load_model(None, runtime="native", threads=1 if IS_SHARED else 2)
    except LoadError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
