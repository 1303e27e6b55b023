from pathlib import Path

import pytest

from foreword.checkpoint.opened import Checkpoint, open_checkpoint
from tests.support.family_models import save_family


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="session")
def opened(folders: Path):
    """opened(name): the checkpoint of a family's tiny model."""

    def open_one(name: str) -> Checkpoint:
        return open_checkpoint(save_family(name, folders / name), cache_dir=folders / "cache")

    return open_one
