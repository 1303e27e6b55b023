"""Tables and lists of the report as HTML text."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from foreword.bench.intervals import TOO_LITTLE
from foreword.bench.wording import against_rivals, duration, gate_word, interval, megabytes, percent, plural, times


def facts_of(facts: Sequence[tuple[str, str, str]]) -> str:
    """(what, figure, unit) side by side."""
    items = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(figure)} <small>{escape(unit)}</small></dd></div>"
        for what, figure, unit in facts
        if figure
    )
    return f'<dl class="facts">{items}</dl>'


def method_table(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The comparison of methods that the field prints."""
    heads = (
        "method",
        "needs",
        "training",
        "accepted at depth 1",
        "accepted, mean",
        "tokens per step",
        "times plain",
        "fits",
    )
    body = ""
    for row in rows:
        facts = data["methods"].get(row["label"], {})
        rates = row.get("accept_rate_at_depth") or []
        tokens = row.get("tokens_per_step")
        cells = [
            (heads[1], _needs(facts), "left wide"),
            (heads[2], _training(facts), ""),
            (heads[3], percent(rates[0]) if rates else "", ""),
            (heads[4], percent(row.get("mean_accept_rate")), ""),
            (heads[5], "" if tokens is None else f"{tokens:.2f}", ""),
            (heads[6], _times(row) or escape(gate_word(row["gate"]).replace("*", "")), ""),
            (heads[7], escape(facts.get("fits", "")), "left wide"),
        ]
        tds = "".join(f'<td class="{kind}" data-label="{label}">{value}</td>' for label, value, kind in cells)
        body += f'<tr><th scope="row"><code>{escape(row["label"])}</code></th>{tds}</tr>'
    ths = "".join(f'<th scope="col"{" class=left" if name in ("needs", "fits") else ""}>{name}</th>' for name in heads)
    return f'<table class="fold"><thead><tr>{ths}</tr></thead><tbody>{body}</tbody></table>'


def _times(row: Mapping[str, Any]) -> str:
    doubt = f" <small>{TOO_LITTLE}</small>" if row.get("verdict") == TOO_LITTLE else ""
    return times(row["speedup"]) + doubt


def _needs(facts: Mapping[str, Any]) -> str:
    size = megabytes(facts.get("weight_bytes"))
    return escape(facts.get("needs", "")) + (f" <small>{size}</small>" if size else "")


def _training(facts: Mapping[str, Any]) -> str:
    if facts.get("training_s"):
        return duration(facts["training_s"])
    return "none" if facts.get("needs") == "nothing" else ""


def gate_section(data: Mapping[str, Any]) -> str:
    """The result of the token comparison, in one sentence and a table of what is not plainly the same."""
    rows = [(mode, row) for mode in data["summary"]["modes"] for row in mode["rows"] if not row["is_baseline"]]
    proved = [row["gate"] for _, row in rows if row["gate"]["status"] in ("same", "near_ties")]
    num_answers, num_ties = sum(g["num_answers"] for g in proved), sum(g["num_near_ties"] for g in proved)
    ties = f", but for {plural(num_ties, 'near-tie')} that rounding explains" if num_ties else ""
    sentence = (
        f"{plural(num_answers, 'drafted answer')} that had to be those of plain decoding are: compared token by token, all the "
        f"same{ties}. "
        if proved
        else "No drafter here kept, or had to keep, the very tokens of plain decoding. "
    )
    failed = [row["label"] for _, row in rows if row["gate"]["status"] == "failed"]
    sentence += f"Not so {', '.join(failed)}: a drafter that changes a token has no figure. " if failed else ""
    others = [(mode, row) for mode, row in rows if row["gate"]["status"] not in ("same", "near_ties")]
    body = "".join(
        f'<tr><th scope="row"><code>{escape(row["label"])}</code></th><td class="left wide" data-label="mode">{escape(mode["name"])}</td>'
        f'<td class="left wide" data-label="words">{escape(gate_word(row["gate"]).replace("*", ""))}</td>'
        f'<td class="left wide" data-label="why">{escape(row["gate"]["reason"])}</td></tr>'
        for mode, row in others
    )
    heads = "<th>drafter</th><th class=left>mode</th><th class=left>same tokens</th><th class=left>why</th>"
    table = (
        f'<figure><table class="fold"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></figure>'
        if body
        else ""
    )
    return f"<section><h2>The same tokens?</h2><p>{escape(sentence)}</p>{table}</section>"


def rivals(data: Mapping[str, Any]) -> str:
    """Other engines beside the best of ours, fastest first."""
    if not data["peers"]:
        return ""
    mode = data["summary"]["modes"][0]
    own = [row for row in mode["rows"] if row["tok_per_s"] and row["is_real"] and row["promise"] == "tokens"]
    entries: list[tuple[str, Mapping[str, Any], str, bool]] = [
        (f"foreword {data['provenance']['dtype']} {row['label']}", row["tok_per_s"], "", True) for row in own
    ]
    entries += [(row["label"], row["tok_per_s"], percent(row["repeated_4grams"]), False) for row in data["peers"]]
    entries.sort(key=lambda entry: -entry[1]["value"])
    longest = entries[0][1]["value"]
    body = "".join(_rival(name, speed, is_ours, longest) for name, speed, _, is_ours in entries)
    shares = "; ".join(f"{name} {share}" for name, _, share, is_ours in entries if not is_ours and share)
    caption = (
        f"{escape(against_rivals(data))}.<br>Repeated 4-grams in their answers: {escape(shares)}. In our plain answers: "
        f"{percent(mode['repeated_4grams'])}."
    )
    return (
        '<section><h2>Other engines</h2><p class="note">Tokens per second after the first, the same prompts as token ids on the same machine. '
        "Other precisions are other models and say other things.</p>"
        f'<figure><div class="chart">{body}</div><figcaption>{caption}</figcaption></figure></section>'
    )


def _rival(name: str, speed: Mapping[str, Any], is_ours: bool, longest: float) -> str:
    """One bar; ours are bold and blue."""
    weight, colour = ("", "target") if is_ours else (" plain-name", "host")
    bar = f'<div class="bar" style="width:{100 * speed["value"] / longest:.1f}%"><span class="{colour}" style="width:100%"></span></div>'
    return (
        f'<div class="row"><div class="name{weight}">{escape(name)}</div><div class="track" aria-hidden="true">{bar}</div>'
        f'<div class="figure"><b>{times(speed, 0)}</b><span class="between">{interval(speed, 0)}</span></div></div>'
    )


def _commit(found: Mapping[str, Any]) -> str | None:
    changed = (
        " with changes that were not committed: it cannot be measured again as it was" if found.get("is_dirty") else ""
    )
    return found.get("commit") and f"{found['commit']}{changed}"


def sources(data: Mapping[str, Any]) -> str:
    """What was measured, and on what."""
    found, settings = data["provenance"], data["settings"]
    machine = found.get("machine", {})
    cpu = machine.get("cpu", {})
    gpus = (machine.get("torch") or {}).get("gpus") or []
    facts = {
        "model": f"{found['model']}, {found['num_parameters'] / 1e6:.0f}M parameters"
        + (f", stored as {found['stored_as']}" if found.get("stored_as") else ""),
        "SHA-256": found.get("model_sha256"),
        "runtime": f"{found['runtime']} {found['dtype']} on {found['device']}, {plural(settings['threads'], 'thread')}",
        "processor": f"{cpu.get('name', 'unknown')}, {plural(cpu.get('logical_cores') or 0, 'logical core')}; {', '.join(cpu.get('features', []))}",
        "GPUs": ", ".join(gpus),
        "system": f"{machine.get('platform', '')}, Python {machine.get('python', '')}",
        "versions": ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
        "commit": _commit(found),
        "prompts": "; ".join(f"{file['name']} ({file['sha256'][:12]})" for file in found["prompt_files"])
        or "those of the demo",
        "chosen": f"{len(data['prompts'])}"
        + (", a fixed subset alike over categories" if settings.get("stratified") else ""),
        "answers": f"at most {settings['max_tokens']} tokens, seed {settings['seed']}"
        + (", past the end token" if settings["ignore_eos"] else ""),
        "repeats": f"{settings['repeats']}, interleaved; medians; 95 % intervals by bootstrap over prompts, pairs kept together",
        "measured": f"{data['summary']['num_answers']:,} answers, {data['summary']['num_tokens']:,} tokens; {found['date']}"
        + (f"; resumed {', '.join(found['resumed'])}" if found.get("resumed") else ""),
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value)
    ids = "<br>".join(escape(f"{p['id']} ({p['prompt_tokens']})") for p in data["prompts"])
    return (
        f'<section><h2>What was measured</h2><dl class="sources">{items}</dl><details><summary>The prompts and their tokens</summary>'
        f'<div class="ids">{ids}</div></details></section>'
    )
