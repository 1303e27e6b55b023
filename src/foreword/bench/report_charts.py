"""Charts of the report as HTML and SVG text. Marks carry their own labels; each chart tells screen readers what it shows."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from foreword.bench.wording import interval, percent, times

_MOST_DEPTHS = 10
_LEAST_LABEL = 0.13  # share of a bar's track below which a part has no room for its label


def dot_plot(rows: Sequence[Mapping[str, Any]], has_calm: bool) -> str:
    """Speed-ups with intervals against plain decoding; rows without a figure say why.

    `has_calm`: the prompts that repeat little are others than all, so they get a mark of their own.
    """
    figured = [row for row in rows if row["speedup"]]
    marks = [value for row in figured for value in _marks(row)]
    low, high = _range([1.0, *marks])
    ticks = _ticks(low, high)

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    rules = "".join(f'<i class="rule{" one" if tick == 1 else ""}" style="left:{at(tick)}"></i>' for tick in ticks)
    labels = "".join(
        f'<span style="left:{at(tick)}{_pulled_in((tick - low) / (high - low))}">{"plain" if tick == 1 else f"{tick:g}×"}</span>'
        for tick in ticks
    )
    head = f'<div class="row axis" aria-hidden="true"><div class="name"></div><div class="track">{labels}</div><div class="figure"></div></div>'
    return f'<div class="chart">{head}{"".join(_dot_row(row, rules, at, has_calm) for row in rows)}</div>'


def _pulled_in(place: float) -> str:
    """Labels at an end of the axis stay inside the page."""
    return ";transform:none" if place < 0.06 else ";transform:translateX(-100%)" if place > 0.94 else ""


def _dot_row(row: Mapping[str, Any], rules: str, at: Callable[[float], str], has_calm: bool) -> str:
    estimate = row["speedup"]
    name = f'<div class="name"><code>{escape(row["label"])}</code>{_tag(row)}</div>'
    if estimate is None:
        reason = escape(row["gate"]["reason"])
        return f'<div class="row">{name}<div class="why">No figure: {reason}</div></div>'
    marks = ""
    if estimate["low"] is not None:
        low, high = at(estimate["low"]), at(estimate["high"])
        marks += f'<i class="span" style="left:{low};right:calc(100% - {high})"></i>'
    if row["speedup_calm"] is not None and has_calm:
        marks += f'<i class="ring" style="left:{at(row["speedup_calm"]["value"])}"></i>'
    marks += f'<i class="dot" style="left:{at(estimate["value"])}"></i>'
    weak = " weak" if row["promise"] != "tokens" or not row["is_real"] else ""
    bounds = "" if row["is_baseline"] else interval(estimate)
    said = f"{row['label']}: {times(estimate)} times plain decoding" + (f", 95 percent {bounds}" if bounds else "")
    figure = f'<div class="figure"><b>{times(estimate)}</b><span class="between">{bounds}</span></div>'
    track = f'<div class="track{weak}" role="img" aria-label="{escape(said)}">{rules}{marks}</div>'
    return f'<div class="row">{name}{track}{figure}</div>'


def _marks(row: Mapping[str, Any]) -> list[float]:
    found = [value for value in row["speedup"].values() if value is not None]
    return found + ([row["speedup_calm"]["value"]] if row["speedup_calm"] else [])


def _tag(row: Mapping[str, Any]) -> str:
    words = {
        "law": ("same distribution, other tokens", ""),
        "lossy": ("lossy", ""),
        "failed": ("failed the gate", " bad"),
    }
    if not row["is_real"]:
        return '<span class="tag">knows the answer</span>'
    word, kind = words.get(row["gate"]["status"], ("", ""))
    return f'<span class="tag{kind}">{word}</span>' if word else ""


def heat_table(mode: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Speed-up by drafter and category; the best of each category is framed."""
    categories = list(mode["num_prompts_by_category"])
    best: dict[str, float] = {}
    for name in categories:
        values = [_category(row, name) for row in rows if row["is_real"] and row["promise"] == "tokens"]
        best[name] = max((value for value in values if value is not None), default=0.0)
    counts = mode["num_prompts_by_category"]
    heads = "".join(f'<th scope="col">{escape(_spaced(name))}<br>{counts[name]}</th>' for name in categories)
    body = ""
    for row in rows:
        if row["is_baseline"] or row["speedup"] is None:
            continue
        cells = ""
        for name in categories:
            value = _category(row, name)
            is_best = value is not None and value == best[name]
            cells += (
                f'<td data-label="{escape(_spaced(name))}"{" class=best" if is_best else ""}{_heat(value)}>'
                f"{'' if value is None else f'{value:.2f}'}</td>"
            )
        body += f'<tr><th scope="row"><code>{escape(row["label"])}</code></th>{cells}</tr>'
    shares = mode["repeated_4grams_by_category"]
    cells = "".join(f'<td data-label="{escape(_spaced(name))}">{percent(shares[name])}</td>' for name in categories)
    body += f'<tr class="share"><th scope="row">repeated 4-grams</th>{cells}</tr>'
    return f'<table class="heat fold"><thead><tr><th></th>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _category(row: Mapping[str, Any], name: str) -> float | None:
    estimate = row["by_category"].get(name, {}).get("speedup")
    return None if estimate is None else estimate["value"]


def _heat(value: float | None) -> str:
    """Blue above one, orange below, stronger with distance."""
    if value is None:
        return ""
    colour = "--blue" if value >= 1 else "--orange"
    strength = min(abs(math.log2(value)) / 1.6, 1.0) * 46
    return f' style="background:color-mix(in srgb, var({colour}) {strength:.0f}%, var(--track))"'


def bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """(name, length, figure, remark) a row; one scale for all."""
    longest = max((length for _, length, _, _ in rows), default=1.0) or 1.0
    body = "".join(
        f'<div class="row"><div class="name"><code>{escape(name)}</code></div>'
        f'<div class="track" aria-hidden="true"><div class="bar" style="width:{100 * length / longest:.1f}%"><span class="target" style="width:100%">'
        f'</span></div></div><div class="figure"><b>{escape(figure)}</b><span>{escape(remark)}</span></div></div>'
        for name, length, figure, remark in rows
    )
    return f'<div class="chart">{body}</div>'


def stacked_bars(rows: Sequence[tuple[str, Mapping[str, float], float | None]]) -> str:
    """(name, milliseconds of a token by part, the least that memory allows) a row; one scale for all."""
    longest = max((sum(parts.values()) for _, parts, _ in rows), default=1.0) or 1.0
    body = ""
    for name, parts, least in rows:
        total = sum(parts.values())
        segments = ""
        for part, ms in parts.items():
            share = max(ms, 0.0) / total if total > 0 else 0.0
            label = f"{ms:.1f}" if share * total / longest >= _LEAST_LABEL else ""
            segments += f'<span class="{part}" style="width:{100 * share:.2f}%">{label}</span>'
        said = ", ".join(f"{part} {ms:.2f} ms" for part, ms in parts.items())
        mark = "" if least is None else f'<i class="light" style="left:{100 * least / longest:.2f}%"></i>'
        body += (
            f'<div class="row"><div class="name"><code>{escape(name)}</code></div>'
            f'<div class="track" role="img" aria-label="{escape(name)}: {said} a token">'
            f'<div class="bar" style="width:{100 * total / longest:.1f}%">{segments}</div>{mark}</div>'
            f'<div class="figure"><b>{total:.1f}</b><span>ms</span></div></div>'
        )
    return f'<div class="chart">{body}</div>'


def depth_multiples(rows: Sequence[Mapping[str, Any]]) -> str:
    """Acceptance by depth, one small picture a drafter. Paler: few steps drafted so deep."""
    pictures = "".join(
        f"<div><p><code>{escape(row['label'])}</code></p>{_depths(row)}</div>"
        for row in rows
        if row["accept_rate_at_depth"]
    )
    return f'<div class="multiples">{pictures}</div>'


def _depths(row: Mapping[str, Any]) -> str:
    rates, counts = row["accept_rate_at_depth"][:_MOST_DEPTHS], row["drafted_at_depth"]
    width, height, foot, head = 150, 84, 16, 16
    step = width / _MOST_DEPTHS if len(rates) > _MOST_DEPTHS // 2 else width / (_MOST_DEPTHS // 2)
    marks = ""
    for depth, rate in enumerate(rates):
        x, tall = depth * step, (height - foot - head) * rate
        faint = 0.3 + 0.7 * math.sqrt(counts[depth] / counts[0]) if counts[0] else 1.0
        marks += (
            f'<rect x="{x + 1:.1f}" y="{height - foot - tall:.1f}" width="{step - 3:.1f}" height="{max(tall, 0.5):.1f}" '
            f'rx="1.5" fill="var(--blue)" opacity="{faint:.2f}"/>'
        )
        if depth == 0 or (depth == len(rates) - 1 and depth >= 3):
            anchor = "start" if depth == 0 else "end"
            at = x + 1 if depth == 0 else x + step - 2
            above = height - foot - tall - 4
            marks += (
                f'<text class="strong" x="{at:.1f}" y="{above:.1f}" text-anchor="{anchor}">{100 * rate:.0f} %</text>'
            )
        if depth == 0 or depth == len(rates) - 1:
            marks += f'<text x="{x + step / 2 - 0.5:.1f}" y="{height - 2}" text-anchor="middle">{depth + 1}</text>'
    said = ", ".join(f"depth {depth + 1}: {rate:.0%}" for depth, rate in enumerate(rates))
    line = f'<path d="M0 {height - foot + 0.5}H{width}" stroke="var(--line)"/>'
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(row["label"])}, accepted at {said}">'
        f"{line}{marks}</svg>"
    )


def pass_cost_chart(cost: Mapping[str, Any]) -> str:
    """Milliseconds of a pass against its nodes on a doubling axis, with the memory floor."""
    widths = {int(n): ms for n, ms in cost["widths"].items()}
    width, height, left, right, top, foot = 420, 250, 8, 16, 26, 40
    highest = 1.12 * max(*widths.values(), cost["floor_ms"])
    last = math.log2(max(widths)) or 1.0

    def x(n: int) -> float:
        return left + 14 + (width - left - right - 28) * math.log2(n) / last

    def y(ms: float) -> float:
        return height - foot - (height - foot - top) * ms / highest

    floor = y(cost["floor_ms"])
    line = " ".join(f"{x(n):.1f},{y(ms):.1f}" for n, ms in widths.items())
    dots = "".join(
        f'<circle cx="{x(n):.1f}" cy="{y(ms):.1f}" r="4.5" fill="var(--blue)"/>'
        f'<text class="strong" x="{x(n):.1f}" y="{y(ms) - 11:.1f}" text-anchor="middle">{ms:.1f}</text>'
        f'<text x="{x(n):.1f}" y="{height - foot + 18}" text-anchor="middle">{n}</text>'
        for n, ms in widths.items()
    )
    said = ", ".join(f"{n} nodes {ms:.1f}" for n, ms in widths.items())
    return (
        f'<div class="line"><svg viewBox="0 0 {width} {height}" role="img" aria-label="Milliseconds of a pass: {said}; memory floor '
        f'{cost["floor_ms"]:.1f}"><path d="M{left} {height - foot}H{width - right}" stroke="var(--line)"/>'
        f'<path d="M{left} {floor:.1f}H{width - right}" stroke="var(--orange)" stroke-width="1.5" stroke-dasharray="5 4"/>'
        f'<text x="{width - right}" y="{floor + 16:.1f}" text-anchor="end" style="fill:var(--orange)">'
        f"memory floor {cost['floor_ms']:.1f} ms</text>"
        f'<polyline points="{line}" fill="none" stroke="var(--blue)" stroke-width="2"/>{dots}'
        f'<text x="{left}" y="12">ms</text>'
        f'<text x="{width - right}" y="{height - 4}" text-anchor="end">nodes in the pass</text></svg></div>'
    )


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that holds all values with some room."""
    low, high = min(values), max(values)
    step = _step(high - low)
    return math.floor((low - 0.15 * step) / step) * step, math.ceil((high + 0.15 * step) / step) * step


def _step(span: float) -> float:
    return next((step for step in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0) if span / step <= 5), 20.0)


def _ticks(low: float, high: float) -> list[float]:
    """Round values, one among them."""
    step = _step(high - low)
    first = math.ceil(low / step - 1e-9)
    found = [round(step * i, 4) for i in range(first, math.floor(high / step + 1e-9) + 1)]
    if 1.0 not in found and low <= 1.0 <= high:
        found = sorted([*(tick for tick in found if abs(tick - 1.0) > 0.3 * step), 1.0])
    return found
