"""The look of the report: one style sheet, light and dark, wide and narrow. Nothing is fetched from anywhere."""
# ruff: noqa: E501 (a rule of the sheet stays on one line)

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfbf9; --card: #ffffff; --ink: #1d1c1a; --soft: #625f59; --line: #e3e0d9; --track: #f1efea;
  --blue: #1d5fc4; --orange: #b4530a; --grey: #77736b; --on-fill: #ffffff; --green: #17703f; --red: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #141413; --card: #1b1a19; --ink: #ebe9e3; --soft: #a5a198; --line: #32302d; --track: #252422;
    --blue: #85b4ff; --orange: #f2a765; --grey: #948f86; --on-fill: #12161d; --green: #74cf9c; --red: #ff8f86;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3 { line-height: 1.2; margin: 0; font-weight: 640; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 1.35rem; }
h3 { font-size: 1rem; }
p { margin: 0; max-width: 42rem; }
section { margin-top: 3.25rem; }
code { font: 0.92em/1 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.soft, figcaption, .note { color: var(--soft); font-size: 0.875rem; }
h2 + p, h2 + .note { margin-top: 0.35rem; }
figure { margin: 1.1rem 0 0; }
figcaption { margin-top: 0.75rem; max-width: 42rem; }
abbr { text-decoration: none; }

/* the headline */
p.eyebrow { max-width: none; color: var(--soft); font-size: 0.875rem; }
.headline { display: grid; grid-template-columns: auto 1fr; gap: 0 1.75rem; align-items: center; margin-top: 0.9rem; }
.big { font-size: clamp(3.6rem, 12vw, 6.25rem); line-height: 1; font-weight: 680; letter-spacing: -0.045em; color: var(--blue); }
.big small { font-size: 0.55em; font-weight: 500; letter-spacing: 0; margin-left: 0.04em; }
h1 { font-size: clamp(1.35rem, 3.2vw, 1.85rem); }
.headline p { color: var(--soft); margin-top: 0.45rem; }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); margin: 2rem 0 0; border-top: 1px solid var(--line); }
.facts div { padding: 0.85rem 1rem 0.2rem 0; }
.facts dt { color: var(--soft); font-size: 0.8125rem; }
.facts dd { margin: 0.1rem 0 0; font-size: 1.3rem; font-weight: 600; letter-spacing: -0.01em; }
.facts dd small { font-size: 0.8125rem; font-weight: 400; color: var(--soft); letter-spacing: 0; }
.warning { border-left: 3px solid var(--red); padding: 0.4rem 0.8rem; margin-top: 1.25rem; }

/* rows of a chart: name, track, figures */
.chart { display: grid; gap: 0.15rem 1rem; grid-template-columns: minmax(6.5rem, max-content) 1fr max-content; align-items: center; }
.chart .row { display: contents; }
.chart .row > * { min-height: 2.1rem; display: flex; align-items: center; }
.name { font-weight: 560; gap: 0.45rem; flex-wrap: wrap; }
.figure { justify-content: flex-end; gap: 0.55rem; white-space: nowrap; }
.figure b { font-weight: 640; min-width: 2.6rem; text-align: right; }
.figure .between { min-width: 6.1rem; }
.figure span { color: var(--soft); font-size: 0.875rem; }
.track { position: relative; }
.track i { position: absolute; display: block; }
.track .rule { top: 0; bottom: 0; width: 1px; background: var(--line); }
.track .one { width: 2px; margin-left: -0.5px; background: var(--grey); opacity: 0.55; }
.track .span { height: 6px; margin-top: -3px; top: 50%; border-radius: 3px; background: var(--blue); opacity: 0.32; }
.track .dot { width: 13px; height: 13px; margin: -6.5px 0 0 -6.5px; top: 50%; border-radius: 50%; background: var(--blue); }
.track .ring { width: 11px; height: 11px; margin: -5.5px 0 0 -5.5px; top: 50%; border-radius: 50%; border: 2px solid var(--blue); background: var(--card); }
.track .light { top: 3px; bottom: 3px; width: 0; border-left: 2px dashed var(--ink); margin-left: -1px; }
.axis > *, .chart .axis > * { min-height: 1.4rem; color: var(--soft); font-size: 0.8125rem; }
.axis .track span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.weak .dot, .weak .span { background: var(--grey); }
.weak .ring { border-color: var(--grey); }
.tag { font-size: 0.75rem; font-weight: 500; color: var(--orange); border: 1px solid currentColor; border-radius: 3px; padding: 0 0.3rem; line-height: 1.35; white-space: nowrap; }
.tag.bad { color: var(--red); }
.why { grid-column: 2 / -1; color: var(--soft); font-size: 0.875rem; }
.together { white-space: nowrap; }
.plain-name { font-weight: 400; }
.key { display: inline-block; vertical-align: -0.05em; margin-right: 0.2rem; }
.key.dot { width: 0.7rem; height: 0.7rem; border-radius: 50%; background: var(--blue); }
.key.ring { width: 0.7rem; height: 0.7rem; border-radius: 50%; border: 2px solid var(--blue); }
.key.light { height: 0.95rem; border-left: 2px dashed var(--ink); margin: 0 0.35rem; vertical-align: -0.15em; }
.key.square { width: 0.7rem; height: 0.7rem; border-radius: 2px; }
.bar { height: 1.25rem; width: 100%; display: flex; border-radius: 3px; overflow: hidden; }
.bar span { display: flex; align-items: center; padding-left: 0.4rem; font-size: 0.8125rem; color: var(--on-fill); white-space: nowrap; overflow: hidden; }
.bar span + span { box-shadow: -1.5px 0 0 var(--paper); }
.target { background: var(--blue); } .drafter { background: var(--orange); } .host { background: var(--grey); }

/* tables */
table { border-collapse: collapse; width: 100%; font-size: 0.9375rem; }
th { font-weight: 500; color: var(--soft); text-align: right; vertical-align: bottom; font-size: 0.8125rem; padding: 0 0.6rem 0.4rem; }
td { text-align: right; padding: 0.4rem 0.6rem; border-top: 1px solid var(--line); white-space: nowrap; }
td.wide { white-space: normal; }
th:first-child, td:first-child, th.left, td.left { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
tbody th { color: var(--ink); font-size: 0.9375rem; font-weight: 560; padding: 0.4rem 0.6rem 0.4rem 0; border-top: 1px solid var(--line); vertical-align: middle; white-space: nowrap; }
.heat { table-layout: fixed; }
.heat th:first-child { width: 9.5rem; }
.heat td { border: 2px solid var(--paper); border-radius: 5px; text-align: center; padding: 0.45rem 0.3rem; }
.heat th { text-align: center; }
.heat tbody th { border-top: 0; text-align: left; }
.heat td.best { font-weight: 700; box-shadow: inset 0 0 0 2px var(--blue); }
.heat tr.share td, .heat tr.share th { color: var(--soft); font-size: 0.8125rem; font-weight: 400; }
td small { color: var(--soft); }

/* two side by side where there is room */
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 2.75rem 3rem; margin-top: 1.6rem; }
.pair > div > .soft { margin-top: 0.2rem; }
.multiples { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.25rem, 1fr)); gap: 1.3rem 1.5rem; }
.multiples svg, .line svg { display: block; width: 100%; height: auto; overflow: visible; }
.multiples svg { max-width: 9.4rem; margin-top: 0.2rem; }
.multiples p { font-weight: 560; font-size: 0.9375rem; }
.line svg { max-width: 34rem; }
svg text { fill: var(--soft); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
svg .strong { fill: var(--ink); font-weight: 600; }
details { margin-top: 1.5rem; border-top: 1px solid var(--line); padding-top: 0.9rem; }
summary { cursor: pointer; font-weight: 560; }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--blue); outline-offset: 3px; border-radius: 2px; }
.sources { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1.5rem; margin: 1rem 0 0; font-size: 0.9375rem; }
.sources dt { color: var(--soft); }
.sources dd { margin: 0; }
.ids { columns: 14rem; margin-top: 0.75rem; font-size: 0.8125rem; color: var(--soft); }

@media (max-width: 40rem) {
  main { padding: 1.5rem 1rem 3rem; }
  section { margin-top: 2.5rem; }
  .headline { grid-template-columns: 1fr; gap: 0.9rem; }
  .facts { grid-template-columns: 1fr 1fr; }
  .facts div { border-bottom: 1px solid var(--line); padding-bottom: 0.7rem; }
  .chart { grid-template-columns: minmax(0, 1fr) max-content; gap: 0 0.75rem; }
  .chart .row > * { min-height: 1.7rem; }
  .chart .track { grid-column: 1 / -1; grid-row: auto; order: 1; }
  .chart .row { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1; margin-bottom: 0.55rem; }
  .chart .axis { margin-bottom: 0; }
  .chart .axis .name, .chart .axis .figure { display: none; }
  .why { grid-column: 1 / -1; }
  .figure span { font-size: 0.8125rem; }
  .name { overflow-wrap: anywhere; }
  /* wide tables become a block a row, each figure under its own label */
  table.fold, .fold tbody, .fold tr { display: block; }
  .fold thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .fold tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(5.1rem, 1fr)); gap: 0.25rem; padding: 0.6rem 0; border-top: 1px solid var(--line); }
  .fold tbody th { grid-column: 1 / -1; border: 0; padding: 0; white-space: normal; text-align: left; }
  .fold td { border: 0; padding: 0.2rem 0; text-align: left; white-space: normal; }
  .heat td { padding: 0.2rem 0.35rem; }
  .fold td.wide { grid-column: 1 / -1; }
  .fold td::before { content: attr(data-label); display: block; color: var(--soft); font-size: 0.6875rem; font-weight: 400; line-height: 1.3; }
  .fold td:empty { display: none; }
  .sources dd { overflow-wrap: anywhere; }
  .heat td { border: 0; }
  .sources { grid-template-columns: 1fr; gap: 0; }
  .sources dd { margin-bottom: 0.6rem; }
}
@media print { section { break-inside: avoid; } details { display: none; } }
"""
