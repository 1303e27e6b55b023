"""Bytes for people."""


def size_text(num_bytes: int) -> str:
    """Bytes in a fitting unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
