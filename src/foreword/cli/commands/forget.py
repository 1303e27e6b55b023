"""`foreword forget`: erase what was remembered of earlier answers."""

from pathlib import Path
from typing import Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import print_json
from foreword.errors import ConfigError


def forget(
    memory: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="This memory only. Default: all in the cache folder, of every model."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Erase what --remember and --memory have kept. Programs that still use it drop what they know when they save next."""
    from foreword.draft.memory.memory_file import forget as erase
    from foreword.draft.memory.memory_file import memories, memory_folder

    if memory is not None and not memory.expanduser().is_file():
        raise ConfigError(f"there is no memory {memory}; without --memory, those in {memory_folder()} are erased")
    files = memories(memory_folder()) if memory is None else [memory.expanduser()]
    freed = {str(file): erase(file) for file in files}
    freed = {file: num_bytes for file, num_bytes in freed.items() if num_bytes}
    if json:
        print_json({"erased": freed})
    elif freed:
        print(f"erased {_memories(len(freed))}, {sum(freed.values()) / 1e6:.1f} MB: {', '.join(freed)}")
    else:
        print(f"nothing to erase in {memory_folder()}")


def _memories(number: int) -> str:
    return "1 memory" if number == 1 else f"{number} memories"
