"""Trained drafters that are installed or were made by the user: found by the model's fingerprint.

    SHELF/NAME/config.json      {"foreword": {"method": "eagle3", "target_fingerprint": ...}, ...}
    SHELF/SHA256SUMS            checksums of the files that are read, where the drafters were shipped

Three shelves, the first match is taken: `checkpoints` in the cache folder (the user's own), `checkpoints` beside the
source, and the installed package `foreword-drafters`. A shelf with checksums is checked before its files are used.
"""

from importlib.util import find_spec
from pathlib import Path

from foreword.checkpoint.cache import cache_folder, sha256_of
from foreword.checkpoint.drafter_kind import card_of
from foreword.checkpoint.json_file import read_json
from foreword.errors import CheckpointError

PACKAGE = "foreword_drafters"
SUMS = "SHA256SUMS"
_SAME_FILES = {"eagle2": "eagle"}  # drafters that are served from what was trained as another
_SOURCE = Path(__file__).parents[3]


def trained_drafter(method: str, target_fingerprint: str) -> Path | None:
    """The folder of a drafter of this method for this model; None where there is none.

    Raises:
        CheckpointError: a shipped file is missing or differs from its checksum.
    """
    method = _SAME_FILES.get(method, method)
    for shelf in drafter_shelves():
        for card in sorted(shelf.glob("*/config.json")):
            if _belongs(card, method, target_fingerprint):
                _check(shelf, card.parent)
                return card.parent
    return None


def trained_drafter_names() -> list[str]:
    """Folders of trained drafters on all shelves, for any model."""
    return sorted({card.parent.name for shelf in drafter_shelves() for card in shelf.glob("*/config.json")})


def drafter_shelves() -> list[Path]:
    """Folders that exist and may hold trained drafters, first one first."""
    places = [cache_folder() / "checkpoints", _SOURCE / "checkpoints", *_package_folders()]
    return [place for place in places if place.is_dir()]


def _package_folders() -> list[Path]:
    """Where the package of data is installed; it is located, not imported."""
    spec = find_spec(PACKAGE)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def _belongs(card: Path, method: str, target_fingerprint: str) -> bool:
    try:
        facts = card_of(read_json(card))
    except CheckpointError:
        return False  # no card of a trained drafter
    return facts.get("method") == method and facts.get("target_fingerprint") == target_fingerprint


def _check(shelf: Path, folder: Path) -> None:
    """Compare the files of one drafter with the shelf's checksums; the hash is remembered while a file is unchanged."""
    sums = shelf / SUMS
    if not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        file = shelf / name
        if file.parent != folder:
            continue
        found = sha256_of(file, cache_folder()) if file.is_file() else "missing"
        if found != expected:
            raise CheckpointError(
                f"{file} is not the file that was shipped: its SHA-256 is {found[:12]}, expected {expected[:12]}; install "
                f"foreword-drafters again, or write {SUMS} anew if the drafter was trained again"
            )
