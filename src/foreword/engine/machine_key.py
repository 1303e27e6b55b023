"""Which machine this is, for figures that were measured on one: what a folder shared by several must keep apart."""

import hashlib
import json
import os
import platform


def machine_facts() -> list[str | int | None]:
    """What tells this machine from another."""
    return [platform.machine(), platform.processor(), platform.node(), os.cpu_count()]


def machine_key() -> str:
    """The facts as a short name that gives none of them away."""
    return hashlib.sha256(json.dumps(machine_facts()).encode()).hexdigest()[:16]
