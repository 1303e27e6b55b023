"""The learning curve as JSON and as pictures: SVG always, PNG where matplotlib is installed."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.files import write_whole

logger = logging.getLogger(__name__)

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 640, 360, 56, 40, 44, 130
_COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563")


@dataclass(frozen=True)
class Axis:
    """What a curve goes over: an entry of its points, in units of `unit`."""

    key: str
    unit: float
    label: str


HOURS = Axis("elapsed_s", 3600.0, "hours of training")
TOKENS = Axis("answer_tokens", 1e6, "million answer tokens")


def write_curves(folder: Path, curve: Sequence[dict[str, Any]], over: Axis = HOURS) -> list[Path]:
    """Write curve.json, curve.svg and, if it can be drawn, curve.png; returns what was written."""
    paths = [folder / "curve.json", folder / "curve.svg"]
    write_whole(paths[0], json.dumps(list(curve), indent=1) + "\n")
    write_whole(paths[1], _svg(_lines(curve, over), over.label))
    if _write_png(folder / "curve.png", _lines(curve, over), over.label):
        paths.append(folder / "curve.png")
    return paths


Line = tuple[str, list[float], list[float]]  # label, where, values


def _lines(curve: Sequence[dict[str, Any]], over: Axis) -> list[Line]:
    where = [point[over.key] / over.unit for point in curve]
    depth = max((len(point["accept_by_depth"]) for point in curve), default=0)
    lines: list[Line] = [("tokens per step", where, [point["tokens_per_step_chain"] for point in curve])]
    for d in range(depth):
        lines.append((f"depth {d + 1} accepted", where, [point["accept_by_depth"][d] for point in curve]))
    return lines


def _svg(lines: Sequence[Line], label_of_x: str) -> str:
    x_max = max((x for _, where, _ in lines for x in where), default=1.0) or 1.0
    y_max = 1.05 * max((y for _, _, values in lines for y in values), default=1.0) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">Held-out answers while training</text>',
        f'<path d="M{_LEFT} {_TOP}v{height}h{width}" fill="none" stroke="#666"/>',
        f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{label_of_x}</text>',
    ]
    for tick in range(5):
        x, y = _LEFT + width * tick / 4, _TOP + height * (1 - tick / 4)
        parts.append(f'<text x="{x:.0f}" y="{_TOP + height + 16}" text-anchor="middle">{x_max * tick / 4:.2g}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{y_max * tick / 4:.2g}</text>')
    for i, (label, where, values) in enumerate(lines):
        colour = _COLOURS[i % len(_COLOURS)]
        points = [
            (_LEFT + width * x / x_max, _TOP + height * (1 - y / y_max)) for x, y in zip(where, values, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        y = _TOP + 16 * i + 8
        parts.append(f'<text x="{_LEFT + width + 10}" y="{y}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _write_png(path: Path, lines: Sequence[Line], label_of_x: str) -> bool:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # pyright: ignore[reportMissingImports]
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        logger.info("no curve.png: matplotlib is not installed; curve.svg shows the same")
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, (label, where, values) in enumerate(lines):
        axes.plot(where, values, marker=".", label=label, color=_COLOURS[i % len(_COLOURS)])
    axes.set(xlabel=label_of_x, title="Held-out answers while training", ylim=(0, None))
    axes.legend(fontsize=8)
    FigureCanvasAgg(figure).print_png(path)
    return True
