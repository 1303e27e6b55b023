"""Everything here needs the compiled kernels; without them it is skipped with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foreword.config import ModelSpec
from foreword.runtime.select import native_problem


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = native_problem()
    if problem is None:
        return
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.skip(reason=f"native kernels are not available: {problem}"))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="session")
def make_decoder(cache_dir: Path) -> Callable[..., Any]:
    """make_decoder(spec, isa=..., threads=..., dtype=..., seed=..., kv_dtype=...): a decoder with random weights."""
    from foreword.runtime.native_runtime import NativeRuntime
    from tests.native.models import RandomWeights

    def make(
        spec: ModelSpec,
        isa: str = "auto",
        threads: int = 2,
        dtype: str = "int8",
        seed: int = 0,
        kv_dtype: str = "float32",
    ) -> Any:
        runtime = NativeRuntime(dtype=dtype, threads=threads, cache_dir=cache_dir, isa=isa, kv_dtype=kv_dtype)
        runtime._pool = runtime._kernels.ThreadPool(threads, threads)  # so many, however few cores there are
        return runtime.decoder(spec, RandomWeights(spec, seed))

    return make
