"""`foreword estimate`: what speculation can give, by arithmetic alone."""

import math
from typing import Annotated, Any

import typer

from foreword.cli.output import console, print_json
from foreword.errors import ConfigError

_SIZES = "7B,70B,405B"
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_LEAST, _MOST = 1e-6, 1e9  # of a device's figures
_TABLE_K = (1, 2, 3, 4, 5, 7, 10)

Alpha = Annotated[float, typer.Option(help="Acceptance rate of drafted tokens, 0 to 1.")]
Cost = Annotated[float, typer.Option("--c", help="Time of one draft step over that of one target pass.")]
Drafted = Annotated[int | None, typer.Option("--k", help="Tokens drafted per step. Default: the best.")]
Verify = Annotated[
    float,
    typer.Option(
        help="What each drafted token adds to a target pass, in plain passes; `foreword profile` measures it."
    ),
]
Sizes = Annotated[str, typer.Option(help="Model sizes, separated by commas: 135M, 7B, 0.5B.")]
Bits = Annotated[float, typer.Option(help="Bits per weight.")]
Tflops = Annotated[float | None, typer.Option(help="Your device's arithmetic, in TFLOP/s; with --bandwidth.")]
Bandwidth = Annotated[float | None, typer.Option(help="Your device's memory, in GB/s; with --tflops.")]
Json = Annotated[bool, typer.Option("--json", help="Data as JSON on stdout.")]


def estimate(
    alpha: Alpha = 0.7,
    c: Cost = 0.1,
    k: Drafted = None,
    verify_cost: Verify = 0.0,
    parameters: Sizes = _SIZES,
    bits: Bits = 16,
    tflops: Tflops = None,
    bandwidth: Bandwidth = None,
    json: Json = False,
) -> None:
    """Estimate speculation from formulas: tokens per step, speed-up, best k, and where a device stops being memory-bound."""
    data = {
        "speculation": _speculation(alpha, c, k, verify_cost),
        "devices": _devices(parameters, bits, tflops, bandwidth),
    }
    if json:
        print_json(data)
    else:
        _show(data, bits)


def _speculation(alpha: float, c: float, k: int | None, verify_cost: float) -> dict[str, Any]:
    from foreword.adapt.estimate import MOST_DRAFTED, best_k, expected_tokens, speed_up

    if verify_cost < 0:
        raise ConfigError(f"--verify-cost is {verify_cost:g}; allowed: 0 or above")
    costs = [1 + verify_cost * drafted for drafted in range(MOST_DRAFTED + 1)]
    best, factor = best_k(alpha, c, costs)
    chosen = sorted({*_TABLE_K, best} - {0}) if k is None else [k]
    rows = [
        {"k": n, "tokens_per_step": expected_tokens(alpha, n), "speed_up": speed_up(alpha, c, n, 1 + verify_cost * n)}
        for n in chosen
    ]
    return {"alpha": alpha, "c": c, "verify_cost": verify_cost, "best_k": best, "best_speed_up": factor, "rows": rows}


def _devices(parameters: str, bits: float, tflops: float | None, bandwidth: float | None) -> list[dict[str, Any]]:
    from foreword.adapt.estimate import DEVICES, Device, estimate_pass, ridge_tokens

    if (tflops is None) != (bandwidth is None):
        raise ConfigError("--tflops and --bandwidth describe one device together; give both")
    for option, value, most in (("--bits", bits, 64), ("--tflops", tflops, _MOST), ("--bandwidth", bandwidth, _MOST)):
        if value is not None and not _LEAST <= value <= most:
            raise ConfigError(f"{option} is {value:g}; allowed: a number from {_LEAST:g} to {most:g}")
    own = [] if tflops is None or bandwidth is None else [Device("yours", tflops * 1e12, bandwidth * 1e9)]
    rows = []
    for size in parameters.split(","):
        count = parse_count(size)
        for device in own or DEVICES:
            one = estimate_pass(count, bits, device)
            rows.append(
                {
                    "model": size.strip(),
                    "device": device.name,
                    "gigabytes_per_token": one.bytes_read / 1e9,
                    "gigaflops_per_token": one.flops / 1e9,
                    "most_tokens_per_s": 1 / one.seconds,
                    "utilisation": one.utilisation,
                    "ridge_tokens": ridge_tokens(bits, device),
                }
            )
    return rows


def parse_count(text: str) -> float:
    """135M, 7B or a plain number of parameters."""
    text = text.strip()
    unit = _UNITS.get(text[-1:].upper())
    try:
        count = float(text[:-1]) * unit if unit else float(text)
        if not 0 < count < math.inf:
            raise ValueError
        return count
    except ValueError as error:
        raise ConfigError(
            f"--parameters has {text!r}; allowed: sizes such as 135M, 7B, 70B, with commas between"
        ) from error


def _show(data: dict[str, Any], bits: float) -> None:
    from rich.table import Table

    found = data["speculation"]
    out = console()
    table = Table(title=f"acceptance {found['alpha']:g}, a draft step costs {found['c']:g} of a target pass")
    for name in ("drafted (k)", "tokens per step", "speed-up"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        mark = " *" if row["k"] == found["best_k"] else ""
        table.add_row(f"{row['k']}{mark}", f"{row['tokens_per_step']:.2f}", f"{row['speed_up']:.2f}")
    out.print(table)
    if found["best_k"]:
        out.print(f"best: k = {found['best_k']}, {found['best_speed_up']:.2f} times plain decoding")
    else:
        out.print("drafting is not faster here: a drafted token costs more than its acceptance gains")
    table = Table(
        title=f"one plain token, weights of {bits:g} bits; ridge: tokens that a pass may hold before it costs more"
    )
    for name in ("model", "device", "GB read", "GFLOP", "tokens/s at most", "arithmetic used", "ridge, tokens"):
        table.add_column(name, justify="left" if name in ("model", "device") else "right")
    for row in data["devices"]:
        table.add_row(
            row["model"],
            row["device"],
            f"{row['gigabytes_per_token']:.3g}",
            f"{row['gigaflops_per_token']:.3g}",
            f"{row['most_tokens_per_s']:.3g}",
            f"{row['utilisation']:.2%}",
            f"{row['ridge_tokens']:.0f}",
        )
    out.print(table)
