"""Waiting until an engine's thread has read what was left for it."""

from foreword.engine.engine import Engine
from foreword.engine.llm_base import LLMBase


def settled(llm: LLMBase) -> Engine:
    """The engine, once every note that this thread has left so far has been read; nothing changes it where nothing runs."""
    llm._loop.call(lambda: None).result(timeout=30)
    return llm.engine
