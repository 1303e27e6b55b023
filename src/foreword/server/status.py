"""What the page's status view shows."""

import os
from pathlib import Path
from typing import Any

import foreword
from foreword.server.served import Served


def status_of(served: Served, now_s: float) -> dict[str, Any]:
    """Model, memory and the engine's counters, as plain data."""
    llm, settings = served.llm, served.settings
    model, spec = llm.model, llm.model.checkpoint.spec
    return {
        "model": {
            "name": settings.model_name,
            "runtime": model.choice.name,
            "dtype": model.choice.dtype,
            "drafter": llm.config.method,
            "context_len": spec.context_len,
            "batch_size": llm.engine.batch_size,
        },
        "memory": {"process_bytes": process_bytes(), "kv_cache_limit_bytes": llm.engine.memory.budget.total_bytes},
        "engine": llm.snapshot().as_dict(),
        "uptime_s": now_s - served.started_s,
        "version": foreword.__version__,
    }


def process_bytes() -> int | None:
    """Memory that the process has in use; None where the system does not say it in a file."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
