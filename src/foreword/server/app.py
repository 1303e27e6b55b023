"""The application: routes behind the guard."""

from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from foreword import __version__
from foreword.engine.async_llm import AsyncLLM
from foreword.server import errors
from foreword.server.routes import about, chat, completions, responses
from foreword.server.security import Guard
from foreword.server.served import Served
from foreword.server.settings import ServerSettings


def create_app(llm: AsyncLLM, settings: ServerSettings) -> FastAPI:
    """An ASGI application that answers for a model. It closes the model when it ends, after the requests under way.

    Args:
        llm: the model, loaded.
        settings: whom it answers, and how much a request may ask for.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        yield
        await llm.close(drain=True)

    app = FastAPI(title="foreword", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.served = Served(llm, settings)
    errors.add_handlers(app)
    for routes in (chat, completions, responses, about):
        app.include_router(routes.router)
    app.add_middleware(Guard, settings=settings)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app
