// Colours tokens by what proposed them. Tokens are [{text, drafter}] in order; joined, their texts are the answer's.

import { byId, el, percent, whole } from "./dom.js";
import { plainPaint } from "./markdown.js";

const STYLES = 8; // in page.css: .by-1 to .by-8, each a tint and a kind of underline
const KNOWN = ["suffix", "ngram_lm", "ngram", "grammar", "draft_model", "eagle", "eagle3", "medusa"];
const styleOf = new Map(KNOWN.map((name, k) => [name, k + 1]));

// The number of a drafter's style; the same on the whole page.
export function styleNumber(drafter) {
  if (!styleOf.has(drafter)) styleOf.set(drafter, (styleOf.size % STYLES) + 1);
  return styleOf.get(drafter);
}

// A painter for `MarkdownView`; plain text where the tokens are not those of the text.
export function tokenPaint(text, tokens) {
  const ends = [];
  let end = 0;
  for (const token of tokens) {
    if (!text.startsWith(token.text.slice(0, text.length - end), end)) return plainPaint;
    ends.push((end += token.text.length));
  }
  return (s, at) => painted(s, at, tokens, ends);
}

function painted(s, at, tokens, ends) {
  const nodes = [];
  for (let i = 0; i < s.length; ) {
    const k = tokenAt(ends, at[i]);
    let j = i + 1;
    while (j < s.length && at[j] < (ends[k] ?? Infinity)) j += 1;
    nodes.push(k < ends.length ? tokenNode(s.slice(i, j), tokens[k].drafter) : document.createTextNode(s.slice(i, j)));
    i = j;
  }
  return nodes;
}

function tokenNode(text, drafter) {
  const name = drafter ? `by-${styleNumber(drafter)}` : "by-none";
  return el("span", { class: `token ${name}`, title: drafter ? `proposed by ${drafter}` : "not drafted" }, text);
}

// The first token that ends after a place.
function tokenAt(ends, place) {
  let [low, high] = [0, ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > place) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Which colour is whose, and how many tokens each brought.
export function showLegend(tokens) {
  const counts = new Map();
  for (const { drafter } of tokens) counts.set(drafter, (counts.get(drafter) ?? 0) + 1);
  const rows = [...counts].sort((a, b) => b[1] - a[1]).map(([drafter, count]) => {
    const name = drafter ? `by-${styleNumber(drafter)}` : "by-none";
    const share = `${whole(count)} (${percent(count / tokens.length)})`;
    return el("li", {}, el("span", { class: `token ${name}` }, drafter ?? "not drafted"), el("span", {}, share));
  });
  byId("legend").replaceChildren(...(rows.length ? rows : [el("li", { class: "faint" }, "No answer yet.")]));
}
