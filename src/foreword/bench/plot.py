"""Small pictures as SVG text: no plotting library, and they open in any browser."""

from html import escape

from foreword.bench.pass_cost import PassCost

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 360, 60, 50, 50


def pass_cost_svg(cost: PassCost, title: str) -> str:
    """Milliseconds of a pass against its nodes, with the memory floor as a dashed line."""
    widths, times = list(cost.ms_by_width), list(cost.ms_by_width.values())
    x_max, y_max = max(widths), 1.1 * max(*times, cost.floor_ms)

    def x(n: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * n / x_max

    def y(ms: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * ms / y_max

    line = " ".join(f"{x(n):.1f},{y(ms):.1f}" for n, ms in cost.ms_by_width.items())
    dots = "".join(
        f'<circle cx="{x(n):.1f}" cy="{y(ms):.1f}" r="4" fill="#2563eb"/>'
        f'<text x="{x(n):.1f}" y="{y(ms) - 10:.1f}" text-anchor="middle">{ms:.1f}</text>'
        f'<text x="{x(n):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{n}</text>'
        for n, ms in cost.ms_by_width.items()
    )
    floor = y(cost.floor_ms)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}: cost of a pass after {cost.context_len} tokens</text>'
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}" fill="none" stroke="#666"/>'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">nodes in the pass</text>'
        f'<text x="16" y="{_HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {_HEIGHT / 2})">milliseconds</text>'
        f'<path d="M{_LEFT} {floor:.1f}H{_WIDTH - 20}" stroke="#dc2626" stroke-dasharray="6 4"/>'
        f'<text x="{_WIDTH - 24}" y="{floor - 6:.1f}" text-anchor="end" fill="#dc2626">'
        f"memory floor {cost.floor_ms:.1f} ms ({cost.bandwidth_gb_per_s:.0f} GB/s)</text>"
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>{dots}</svg>\n'
    )
