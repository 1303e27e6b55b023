"""Models from the Hugging Face hub: only the files that are read are fetched, into the hub's own cache."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foreword.errors import DownloadError, ModelNotFoundError
from foreword.progress import Report

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/(.+\.gguf)")
_MOST_NAME = 400  # characters
_SHOWN = 8  # names that a message lists
WANTED = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
)  # fmt: skip


def is_hub_name(model: str) -> bool:
    """Whether the text looks like owner/name or owner/name/file.gguf."""
    if len(model) > _MOST_NAME:
        return False
    return bool(_FILE.fullmatch(model)) or bool(_ID.fullmatch(model) and not model.endswith(".gguf"))


def fetch_from_hub(model: str, report: Report, also: Sequence[str] = ()) -> Path:
    """The local folder of a hub id, or the local file of owner/name/file.gguf. `also`: further files of the folder.

    Downloads resume where they were cut; with the hub's offline mode on, only its cache is looked at.

    Raises:
        ModelNotFoundError: no such model, or no access to it, or it is not in the cache while offline.
        DownloadError: the connection failed on the way.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    bar = _bar(report)
    with _explained(model):
        if match := _FILE.fullmatch(model):
            return Path(hf_hub_download(match.group(1), match.group(2), tqdm_class=bar))
        folder = Path(snapshot_download(model, allow_patterns=[*WANTED, *also], tqdm_class=bar))
    _check_fetched(folder, model, also)
    return folder


def _check_fetched(folder: Path, model: str, also: Sequence[str]) -> None:
    """`ModelNotFoundError` with what the repository holds, where nothing of it is what foreword reads."""
    weights = [*folder.glob("*.safetensors"), *(folder / name for name in also if (folder / name).is_file())]
    has_config = (folder / "config.json").is_file()
    if has_config and weights:
        return
    names = _names_in(model)
    ggufs = [name for name in names if name.endswith(".gguf")]
    held = (
        f"; it holds {', '.join(names[:_SHOWN])}{f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''}"
        if names
        else ""
    )
    hint = f"; name one of its GGUF files: {model}/{ggufs[0]}" if ggufs else ""
    lacks = "no config.json" if not has_config else "no weights of a name that foreword reads"
    raise ModelNotFoundError(
        f"hub model {model} has {lacks} (config.json with {WANTED[2]}, or with an index and {WANTED[4]}){held}{hint}"
    )


def _names_in(model: str) -> list[str]:
    """The files of a repository; none where the hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        return sorted(HfApi().list_repo_files(model))
    except Exception:  # it is for a message only, and the library raises the errors of three HTTP clients
        return []


def fetch_hub_file(repo: str, name: str, revision: str, folder: Path, report: Report) -> Path:
    """One file of one revision, into `folder`.

    Raises:
        DownloadError: it could not be fetched.
    """
    from huggingface_hub import HfApi, snapshot_download

    bar = _bar(report)
    try:
        with _explained(f"{repo}/{name}"):
            # Fails at once where there is no connection; the download would keep trying for half a minute.
            HfApi().model_info(repo, revision=revision, timeout=10)
            snapshot_download(repo, revision=revision, allow_patterns=[name], local_dir=folder, tqdm_class=bar)
    except ModelNotFoundError as error:
        raise DownloadError(str(error)) from error
    if not (folder / name).is_file():
        raise DownloadError(f"hub model {repo} has no file {name}")
    return folder / name


@contextlib.contextmanager
def _explained(model: str) -> Iterator[None]:
    """Turn the hub library's errors into ours, with what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"hub model {model} asks for consent first: accept its terms on its page, then log in with 'hf auth login'"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no model {model!r}, or it is private; check the name, or log in with 'hf auth login'"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelNotFoundError(
            f"{model} is not here: no such local path, not in the hub's cache, and the hub cannot be reached (no "
            f"connection, or HF_HUB_OFFLINE is set); connect and try again, or give the path of a folder or .gguf file"
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelNotFoundError(f"the hub has no file {model!r}; check the name on the model's page") from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"{model!r} is no local path and no hub id: {error}") from error
    except Exception as error:  # the library lets errors of three different HTTP clients through
        raise DownloadError(
            f"fetching {model} from the hub failed ({error}); try again: it resumes where it stopped"
        ) from error


def _bar(report: Report) -> Any:
    """A progress bar class for the hub's library that draws nothing and reports its bytes."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._in_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})
            self._label = str(options.get("desc") or "fetching")
            self._whole = options.get("total")
            self._done = int(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            if self._in_bytes:
                report(self._label, self._done, None if self._whole is None else int(self._whole))

    return Bar
