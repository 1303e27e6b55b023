"""The report: one HTML page that needs nothing but itself.

In the order in which people ask: is it faster, by how much, for what text; why (what a step brings and what it costs); is
it the same text; how do others do; and what exactly was measured, on what.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from foreword.bench import report_charts as charts
from foreword.bench.report_reliability import reliability_multiples
from foreword.bench.report_style import STYLE
from foreword.bench.report_tables import facts_of, gate_section, method_table, rivals, sources
from foreword.bench.wording import cpu_name, interval, percent, plural, times, unfinished


def html_page(data: Mapping[str, Any]) -> str:
    """The page of a result file with its summary."""
    modes = data["summary"]["modes"]
    body = [_header(data, modes[0])]
    body += [_speed_section(mode, is_first=mode is modes[0]) for mode in modes]
    body.append(_inside(data, modes[0]))
    body += [_inside_more(mode) for mode in modes[1:]]
    body += [_methods(data, modes[0]), gate_section(data), rivals(data), sources(data)]
    title = escape(f"foreword bench: {data['provenance']['model']}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, body))
        + "\n</main>\n</body>\n</html>\n"
    )


def _sorted(mode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Fastest first; what has no figure comes last."""
    return sorted(mode["rows"], key=lambda row: -(row["speedup"]["value"] if row["speedup"] else -1.0))


def _best(mode: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in mode["rows"] if row["label"] == mode["best"]), None)


def _header(data: Mapping[str, Any], mode: Mapping[str, Any]) -> str:
    settings, best = data["settings"], _best(mode)
    where = (
        f"{escape(data['provenance']['model'])}, {escape(data['provenance']['runtime'])} {escape(data['provenance']['dtype'])}"
        f" · {escape(cpu_name(data))}, {plural(settings['threads'], 'thread')} · {escape(data['provenance']['date'])}"
    )
    eyebrow = f'<p class="eyebrow">foreword bench · {where}</p>'
    warning = f'<p class="warning">{escape(unfinished(data))}</p>' if unfinished(data) else ""
    return f"<header>{eyebrow}{warning}{_headline(data, mode, best)}{_facts(data, mode, best)}</header>"


def _headline(data: Mapping[str, Any], mode: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    if best is None:
        return "<div class='headline'><h1>No drafter passed the gate here: there is no speed-up to show.</h1></div>"
    value, bounds = best["speedup"]["value"], interval(best["speedup"])
    name = f"<code>{escape(best['label'])}</code>"
    titles = {
        "faster": f"the speed of plain decoding with {name}, {_same(best)}",
        "slower": f"the speed of plain decoding: nothing is faster here, {name} loses least",
    }
    title = titles.get(
        best["verdict"], f"the speed of plain decoding with {name}: too little to tell whether it is faster"
    )
    over = f"{plural(mode['num_prompts'], 'prompt')}, {escape(mode['name'])}, at most {data['settings']['max_tokens']} tokens"
    sure = f"95 % interval {bounds}. " if bounds else ""
    calm = best["speedup_calm"]
    little = (
        f" Over the {mode['num_calm_prompts']} prompts whose plain answer repeats itself little: {times(calm)} times."
        if calm and mode["num_calm_prompts"] < mode["num_prompts"]
        else ""
    )
    return (
        f'<div class="headline"><div class="big">{value:.2f}<small>×</small></div>'
        f"<div><h1>{title}</h1><p>{sure}{over}.{little}</p></div></div>"
    )


def _same(row: Mapping[str, Any]) -> str:
    words = {
        "same": "and not a token changed",
        "near_ties": "the same tokens except for proven near-ties",
    }
    return words[row["gate"]["status"]]


def _facts(data: Mapping[str, Any], mode: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    plain = next(row for row in mode["rows"] if row["is_baseline"])
    light = data["summary"]["speed_of_light_tok_per_s"]
    facts = [("plain decoding", times(plain["tok_per_s"], 0), "tok/s")]
    if best is not None:
        facts.append((f"with {best['label']}", times(best["tok_per_s"], 0), "tok/s"))
        facts.append(
            ("tokens per step", f"{best['tokens_per_step']:.2f}", "plain: 1")
            if best["tokens_per_step"]
            else ("", "", "")
        )
    if light is not None:
        facts.append(("memory allows, plainly", f"{light:.0f}", "tok/s"))
    return facts_of(facts)


def _speed_section(mode: Mapping[str, Any], is_first: bool) -> str:
    rows = _sorted(mode)
    has_calm = 0 < mode["num_calm_prompts"] < mode["num_prompts"]
    keys = ['<span class="key dot"></span> all prompts, with the 95 % interval']
    if has_calm:
        keys.append(
            f'<span class="key ring"></span> the {mode["num_calm_prompts"]} prompts whose plain answer repeats less than 40 % of its '
            "4-grams"
        )
    repeats = (
        f"Drafters that copy gain where a model repeats itself: {percent(mode['repeated_4grams'])} of the 4-grams in the plain answers are "
        "repeats."
    )
    title = "Speed-up" if is_first else f"Speed-up, {mode['name']}"
    figure = (
        f"<figure>{charts.dot_plot(rows, has_calm)}<figcaption>{' · '.join(keys)}<br>{repeats}</figcaption></figure>"
    )
    note = f'<p class="note">Times plain decoding, {escape(mode["name"])}; {plural(mode["num_prompts"], "prompt")}.</p>'
    return f"<section><h2>{escape(title)}</h2>{note}{figure}</section>{_categories(mode, rows, is_first)}"


def _categories(mode: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], is_first: bool) -> str:
    if len(mode["num_prompts_by_category"]) < 2:
        return ""
    auto = mode["auto_against_best_fixed"]
    note = ""
    if auto:
        name, value = min(auto.items(), key=lambda item: item[1])
        note = (
            f"<figcaption>Against the best fixed choice of each category, found afterwards, <code>auto</code> reaches at least "
            f"{value:.2f} ({escape(name.replace('_', ' '))}).</figcaption>"
        )
    title = "By kind of text" if is_first else f"By kind of text, {mode['name']}"
    head = "Times plain decoding. Framed: the best of each kind. Under each kind: its prompts."
    figure = f"<figure>{charts.heat_table(mode, rows)}{note}</figure>"
    return f'<section><h2>{escape(title)}</h2><p class="note">{head}</p>{figure}</section>'


def _inside(data: Mapping[str, Any], mode: Mapping[str, Any]) -> str:
    cost = data["pass_cost"]
    parts = _step_parts(mode)
    if cost:
        parts.append(
            f'<div><h3>What a pass costs</h3><p class="soft">Milliseconds after {cost["context"]} tokens, by the nodes read at once. '
            f"The floor reads {cost['weight_bytes'] / 1e6:.0f} MB of weights at {cost['bandwidth_gb_per_s']:.1f} GB/s.</p>"
            f"<figure>{charts.pass_cost_chart(cost)}</figure></div>"
        )
    return (
        '<section><h2>Why: what a step yields and what it costs</h2><p class="note">A speed-up is the tokens that a step yields over '
        f'what the step costs, both in plain steps. {escape(mode["name"]).capitalize()}.</p><div class="pair">{"".join(parts)}</div></section>'
    )


def _inside_more(mode: Mapping[str, Any]) -> str:
    parts = "".join(_step_parts(mode))
    summary = f"What a step yields and costs, {escape(mode['name'])}"
    return f'<details><summary>{summary}</summary><div class="pair">{parts}</div></details>'


def _step_parts(mode: Mapping[str, Any]) -> list[str]:
    rows = [row for row in _sorted(mode) if row["speedup"]]
    brought = [
        (row["label"], row["tokens_per_step"], f"{row['tokens_per_step']:.2f}", f"costs {row['step_cost']:.2f}")
        for row in rows
        if row["tokens_per_step"] and row["step_cost"]
    ]
    spent = [
        (row["label"], row["ms_per_token"], 1e3 / row["light_tok_per_s"] if row["light_tok_per_s"] else None)
        for row in rows
        if row["ms_per_token"]
    ]
    light = (
        ' <span class="together"><span class="key light"></span>reading the weights once</span>'
        if any(least for _, _, least in spent)
        else ""
    )
    drafting = [row for row in rows if row["accept_rate_at_depth"]]
    parts = [
        '<div><h3>Tokens per step</h3><p class="soft">Bars: tokens that one pass brings to a request. Beside: what the step costs in plain '
        f"steps.</p><figure>{charts.bars(brought)}</figure></div>",
        '<div><h3>Where the time of a token goes</h3><p class="soft"><span class="key square target"></span> target '
        '<span class="key square drafter"></span> drafter <span class="key square host"></span> everything else, '
        f"in milliseconds;{light}</p>"
        f"<figure>{charts.stacked_bars(spent)}</figure></div>",
    ]
    if drafting:
        parts.append(
            '<div><h3>Accepted by depth</h3><p class="soft">Share of the steps that drafted so deep in which a token of that depth was '
            f"kept. Paler: fewer such steps.</p><figure>{charts.depth_multiples(drafting)}</figure></div>"
        )
    if any(row.get("reliability") for row in rows):
        parts.append(
            '<div><h3>Do stated chances come true?</h3><p class="soft">Across: the chance that a drafter states for a token. Up: the share '
            f"that was kept. On the diagonal both agree.</p><figure>{reliability_multiples(rows)}</figure></div>"
        )
    return parts


def _methods(data: Mapping[str, Any], mode: Mapping[str, Any]) -> str:
    rows = [row for row in _sorted(mode) if row["speedup"] and not row["is_baseline"]]
    return (
        '<section><h2>The methods</h2><p class="note">Every figure was measured here; what a method needs and where it fits is known '
        f"of it.</p><figure>{method_table(data, rows)}</figure></section>"
        if rows
        else ""
    )
