"""Runs the application: says when it is ready, drains at SIGTERM, ends with the engine."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from foreword.engine.async_llm import AsyncLLM
from foreword.errors import ClosedError, ConfigError
from foreword.server.app import create_app
from foreword.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_BACKLOG = 1024  # connections that wait to be accepted
_LOOK_S = 0.5  # between two looks at the engine
EXIT_ENGINE_FAILED = 1


def serve(llm: AsyncLLM, settings: ServerSettings, ready: Callable[[str], None]) -> int:
    """Answer until told to stop; the exit code.

    Args:
        llm: the model, loaded.
        settings: where to listen, and the limits.
        ready: told the base address once requests are answered.
    """
    listener = listener_of(settings)
    config = config_of(create_app(llm, settings))
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_serve(llm, settings, config, listener, ready))


def url_of(settings: ServerSettings, port: int) -> str:
    """The base address for people on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}"


def config_of(app: FastAPI) -> uvicorn.Config:
    """How requests are read."""
    return uvicorn.Config(
        app,
        http="h11",  # which bounds what a head may take
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 << 10,
    )


def listener_of(settings: ServerSettings) -> socket.socket:
    """Before the first request is read, so that a port in use is an error of the command line."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off. Without it every answer on a kept connection waits
    # some 40 ms: its body is held back until the client has acknowledged the head, which it delays.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}; name another with --port or --host"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """The first SIGTERM or SIGINT drains; a second one ends the process at once, whatever is being answered."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for each signal."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
            return
        # Not by an exception: an engine's thread would be waited for until its pass, or its answer, has ended.
        count = len(self.server_state.connections)
        logger.warning("ended by a second signal: %s cut", f"{count} connection{' was' if count == 1 else 's were'}")
        logging.shutdown()
        os._exit(128 + sig)


async def _serve(
    llm: AsyncLLM,
    settings: ServerSettings,
    config: uvicorn.Config,
    listener: socket.socket,
    ready: Callable[[str], None],
) -> int:
    server = _Server(config)
    watch = asyncio.create_task(_watch(llm, server))
    url = url_of(settings, listener.getsockname()[1])
    started = asyncio.create_task(_when_started(server, lambda: ready(url)))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in (watch, started):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    refusal = llm.refusal
    return EXIT_ENGINE_FAILED if refusal is not None and not isinstance(refusal, ClosedError) else 0


async def _when_started(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready()


async def _watch(llm: AsyncLLM, server: uvicorn.Server) -> None:
    """End the server with its engine: nothing can be answered any more."""
    while llm.refusal is None:
        await asyncio.sleep(_LOOK_S)
    if not isinstance(llm.refusal, ClosedError):
        logger.error("the engine has ended, and the server with it: %s", llm.refusal)
        server.should_exit = True
