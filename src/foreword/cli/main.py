"""Entry point: commands, and what becomes of errors.

A user's mistake is one line on stderr and exit code 2, never a traceback: that would be a bug of foreword. 130 after
Ctrl-C; a quiet 1 when the reader of stdout went away.
"""

import gc
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli.commands import (
    bench,
    chat,
    check,
    demo,
    doctor,
    estimate,
    export,
    forget,
    generate,
    profile,
    serve,
    train,
    tune,
    vllm,
)
from foreword.cli.commands import inspect as inspect_model
from foreword.errors import ForewordError

EXIT_BROKEN_PIPE, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 130

# A full collection walks over all of torch: 0.1 to 0.3 s in the middle of an answer. A command ends soon; rarer is enough.
_COLLECT_AFTER = (100_000, 20, 100)

# typer carries its own copy of click; what it raises for a wrong option has this base in every version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # pyright: ignore[reportAssignmentType]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Faster generation with the tokens of plain decoding: lossless speculative decoding.",
)
app.command(name="demo")(demo.demo)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.command(name="check")(check.check)
app.command(name="bench")(bench.bench)
app.command(name="inspect")(inspect_model.inspect)
app.command(name="profile")(profile.profile)
app.command(name="estimate")(estimate.estimate)
app.command(name="tune")(tune.tune)
app.command(name="train")(train.train)
app.command(name="export")(export.export)
app.command(name="vllm")(vllm.vllm)
app.command(name="serve")(serve.serve)
app.command(name="forget")(forget.forget)
app.command(name="doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from foreword import __version__

        print(f"foreword {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own); returns the exit code."""
    gc.set_threshold(*_COLLECT_AFTER)
    if not _open_closed_streams():
        return _fail("stdout is closed, so there is nowhere to print to; send it to /dev/null to leave the output out")
    return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="foreword", standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # what typer makes of Ctrl-C
            return _interrupted()
        return code if isinstance(code, int) else 0
    except ForewordError as error:
        return _fail(str(error))
    except _UsageError as error:
        return _fail(_usage_message(error))
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:  # a full disk, a folder that cannot be made
        if error.filename is None:  # stdout itself
            _silence_stdout()
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}")


def _open_closed_streams() -> bool:
    """Whether there is a stdout. Closed streams get somewhere to go, or the next file opened would be taken for one of them."""
    has_stdout = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    return has_stdout


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit; give it somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    if message:
        print(f"error: {message}", file=sys.stderr)
    return EXIT_USER_ERROR


def _usage_message(error: Exception) -> str:
    """What is wrong with the command line; empty where typer has printed the help instead."""
    message = " ".join(getattr(error, "format_message", error.__str__)().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "foreword"
    return message and f"{message}; see '{command} --help'"
