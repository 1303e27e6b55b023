"""The reliability plot of the report: stated chances against what became of them."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SIDE, _FOOT, _LEFT = 128, 18, 26


def reliability_multiples(rows: Sequence[Mapping[str, Any]]) -> str:
    """One small square a drafter: a dot on the diagonal is a chance that came true. Larger dots: more tokens."""
    pictures = "".join(
        f"<div><p><code>{escape(row['label'])}</code></p>{_square(row['label'], row['reliability'])}</div>"
        for row in rows
        if row.get("reliability")
    )
    return f'<div class="multiples">{pictures}</div>'


def _square(label: str, found: Mapping[str, Any]) -> str:
    most = max(one["tokens"] for one in found["bins"])
    dots = "".join(
        f'<circle cx="{_LEFT + _SIDE * one["stated"]:.1f}" cy="{4 + _SIDE * (1 - one["kept"]):.1f}" '
        f'r="{1.5 + 4 * math.sqrt(one["tokens"] / most):.1f}" fill="var(--blue)"/>'
        for one in found["bins"]
    )
    said = ", ".join(f"stated {one['stated']:.0%} kept {one['kept']:.0%}" for one in found["bins"])
    ends = (
        f'<text x="{_LEFT - 4}" y="12" text-anchor="end">1</text><text x="{_LEFT - 4}" y="{_SIDE + 4}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + _SIDE}" y="{_SIDE + _FOOT}" text-anchor="end">1</text>'
        f'<text class="strong" x="{_LEFT + _SIDE - 4}" y="{_SIDE - 4}" text-anchor="end">off by {found["error"]:.3f}</text>'
    )
    frame = (
        f'<path d="M{_LEFT} 4V{_SIDE + 4}H{_LEFT + _SIDE}" stroke="var(--line)" fill="none"/>'
        f'<path d="M{_LEFT} {_SIDE + 4}L{_LEFT + _SIDE} 4" stroke="var(--line)" stroke-dasharray="3 3"/>'
    )
    return (
        f'<svg viewBox="0 0 {_LEFT + _SIDE + 8} {_SIDE + _FOOT + 6}" role="img" '
        f'aria-label="{escape(label)}, mean distance {found["error"]:.3f}: {said}">{frame}{dots}{ends}</svg>'
    )
