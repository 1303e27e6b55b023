"""`foreword serve`: the model behind the OpenAI API."""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import note
from foreword.errors import ConfigError

_SERVER, _LIMITS = "Server", "Limits"
_TRY = """
  try: curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\
         -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'
  page: {url}/ | stop: Ctrl-C"""


def serve(
    model: opt.Model = None,
    drafter: opt.Drafter = None,
    speculative_config: opt.SpeculativeConfig = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = None,
    adaptive: opt.Adaptive = False,
    profile: opt.Profile = None,
    memory: opt.MemoryFile = None,
    remember: opt.Remember = False,
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    share_weights: opt.ShareWeights = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine need a key.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", rich_help_panel=_SERVER)] = 8000,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What clients call the model. Default: its own name.", rich_help_panel=_SERVER
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key that clients must send.", rich_help_panel=_SERVER)
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        typer.Option(
            "--allow-unauthenticated", help="Listen on an open address without a key.", rich_help_panel=_SERVER
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of this server, as behind a proxy.", rich_help_panel=_SERVER),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A web page's origin that may ask (CORS).", rich_help_panel=_SERVER),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Most requests in one batch.", rich_help_panel=_LIMITS)] = 16,
    max_queue: Annotated[
        int, typer.Option(help="Most calls that wait; further ones get 429.", rich_help_panel=_LIMITS)
    ] = 128,
    stream_pause: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Seconds between two events of a streamed answer; 0: one per step.",
            rich_help_panel=_SERVER,
        ),
    ] = 0.04,
    request_timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Most seconds per request; its answer ends there.", rich_help_panel=_LIMITS),
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(help="Largest request.", rich_help_panel=_LIMITS)] = 16 << 20,
    kv_cache_bytes: Annotated[
        int | None,
        typer.Option(
            help="Most memory for keys and values. Default: three quarters of what is free.", rich_help_panel=_LIMITS
        ),
    ] = None,
    prefix_cache: Annotated[
        bool, typer.Option(help="Read common beginnings of prompts once.", rich_help_panel=_LIMITS)
    ] = True,
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep beginnings of prompts in this folder, so that they survive a restart. Prompts can be recovered from it.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    prompt_cache_bytes: Annotated[int, typer.Option(help="Most that they may take there.", rich_help_panel=_LIMITS)] = 8
    << 30,
) -> None:
    """Serve a model to clients of the OpenAI API, drafting for every request. The tokens are those of plain decoding."""
    try:
        from foreword.server.run import serve as run
        from foreword.server.settings import ServerSettings
    except ImportError as error:
        raise ConfigError(
            f"the server needs packages that are not installed ({error.name}); pip install 'foreword[serve]'"
        ) from error
    key = None if api_key_file is None else _key(api_key_file)
    settings = ServerSettings(
        model_name="model" if served_model_name is None else served_model_name,  # its own, once it is loaded
        host=host,
        port=port,
        api_key=key,
        allow_unauthenticated=allow_unauthenticated,
        allowed_hosts=tuple(name.lower() for name in allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        stream_pause_s=stream_pause,
        request_timeout_s=request_timeout,
        max_body_bytes=max_body_bytes,
    )
    draft = opt.draft_options(drafter, speculative_config, num_speculative_tokens, adaptive, profile, memory, remember)

    from foreword.engine.async_llm import AsyncLLM

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    llm = AsyncLLM(
        model,
        batch_size=batch_size,
        max_queue=max_queue,
        kv_cache_bytes=kv_cache_bytes,
        prefix_cache=prefix_cache,
        prompt_cache=prompt_cache,
        prompt_cache_bytes=prompt_cache_bytes,
        runtime=runtime,
        dtype=dtype,
        kv_dtype=kv_dtype,
        threads=threads,
        share_weights=share_weights,
        show_progress=sys.stderr.isatty(),
        **draft,
    )
    source = llm.model.checkpoint.source
    if served_model_name is None:
        settings = replace(settings, model_name=_name_of(source))
    bearer = " -H 'Authorization: Bearer KEY'" if key else ""
    about = f"{settings.model_name} ({source}, {llm.model.runs_on}), drafter {llm.config.method}"
    raise typer.Exit(
        run(llm, settings, lambda url: note(f"serving at {url}/v1: {about}" + _TRY.format(url=url, key=bearer)))
    )


def _key(file: Path) -> str:
    """The key in a file, without the end of its line."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file} cannot be read: {error}") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"--api-key-file {file} holds no key; put one line of printable characters without spaces in it"
        )
    return key


def _name_of(source: str) -> str:
    """A folder's or file's own name; a hub id as it is."""
    return Path(source).name if Path(source).exists() else source
