"""`foreword vllm`: from a tuned profile or a drafter to how vLLM is started with it."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli import options as opt
from foreword.cli.output import note, print_json
from foreword.errors import ConfigError

NO_TARGET = "TARGET"  # to be put in by the reader


def vllm(
    target: Annotated[
        str,
        typer.Argument(help="The model as vLLM knows it: a Hugging Face folder or hub id. Default: left to be put in."),
    ] = NO_TARGET,
    drafter: opt.Drafter = None,
    speculative_config: opt.SpeculativeConfig = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = None,
    profile: opt.Profile = None,
    run: Annotated[
        bool, typer.Option("--run", help="Start it, in this environment; foreword ends as vLLM does.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Print the complete `vllm serve` command and the Python call, in today's names, for a drafter or a tuned profile.

    suffix, ngram_lm and both together are foreword's own inside vLLM; trained drafters come from `foreword export --to vllm`.
    """
    from foreword.integrations.vllm_options import engine_options, python_text, serve_command, shell_text

    options = engine_options(_config(drafter, speculative_config, profile), num_speculative_tokens)
    words = serve_command(target, options)
    if run:
        _run(target, words)
        return
    if json:
        print_json({"command": words, "options": options})
        return
    print(shell_text(words))
    print(f"\n{python_text(target, options)}")
    if "additional_config" in options:
        note("\nforeword must be installed in vLLM's environment; tried with vLLM 0.32, V1 runner")


def _config(drafter: str | None, speculative_config: str | None, profile: Path | None) -> Any:
    """The drafter that is named, or else the profile's."""
    given = opt.draft_options(drafter, speculative_config, None)
    named = given.get("speculative_config", given.get("drafter"))
    if named is not None:
        return named
    if profile is None:
        raise ConfigError("no drafter is named; give --drafter, or --profile with a file of 'foreword tune'")
    from foreword.engine.profile_file import read_profile

    return read_profile(profile).draft_config


def _run(target: str, words: list[str]) -> None:
    from importlib.util import find_spec

    from foreword.integrations.vllm_options import module_command

    if target == NO_TARGET:
        raise ConfigError("--run starts vLLM, and no model is named; name its Hugging Face folder or hub id")
    if find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed in this environment; install foreword into vLLM's own, or paste the command there"
        )
    code = subprocess.run(module_command(sys.executable, words), check=False).returncode
    if code:
        raise typer.Exit(code)
