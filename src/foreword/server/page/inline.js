// Inline Markdown: emphasis, code, links. A text carries for each character its place in the answer, so that whoever
// paints it knows which token it came from: {s: "text", at: [0, 1, 2, 3]}.

import { el } from "./dom.js";

const MAX_DEPTH = 12;
const LINK = /^(https?:\/\/|mailto:)/i;
const BARE = /https?:\/\/[^\s<>"'`|\\^{}]+/iy;
const ANGLE = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/iy;
const IS_WORD = /[\p{L}\p{N}_]/u;

// Adds the text to a node; `paint(s, at)` makes the nodes of a run of plain text.
export function renderInline(parent, text, paint, depth = 0) {
  const { s, at } = text;
  const missing = new Set(); // closing marks that were looked for and are not there: looked for once
  let from = 0; // plain text that waits
  let i = 0;
  const flush = (end) => {
    if (end > from) parent.append(...paint(s.slice(from, end), at.slice(from, end)));
  };
  const take = (node, start, end) => {
    flush(start);
    parent.append(node);
    i = from = end;
  };
  const inner = (tag, start, end, attributes) => {
    const node = el(tag, attributes);
    renderInline(node, { s: s.slice(start, end), at: at.slice(start, end) }, paint, depth + 1);
    return node;
  };
  while (i < s.length) {
    const c = s[i];
    if (c === "\\" && /[!-/:-@[-`{-~]/.test(s[i + 1] ?? "")) {
      flush(i);
      from = i + 1;
      i += 2;
    } else if (c === "\\" && s[i + 1] === "\n") {
      take(el("br"), i, i + 2);
    } else if (c === "\n" && s.slice(from, i).endsWith("  ")) {
      take(el("br"), i, i + 1);
    } else if (c === "`") {
      const size = runLength(s, i);
      const end = closingRun(s, i + size, "`", size, missing);
      if (end < 0) i += size;
      else take(el("code", {}, ...paint(...trimmed(s, at, i + size, end))), i, end + size);
    } else if ((c === "*" || c === "_" || c === "~") && depth < MAX_DEPTH) {
      const size = runLength(s, i);
      const end = opens(s, i, size) ? closingMark(s, i + size, c, size, missing) : -1;
      if (end < 0) i += size;
      else take(emphasis(c, size, (tag) => inner(tag, i + size, end)), i, end + size);
    } else if (c === "[" || (c === "!" && s[i + 1] === "[")) {
      const found = linkAt(s, c === "!" ? i + 1 : i, missing);
      if (found && depth < MAX_DEPTH) take(inner("a", found.start, found.end, linkTo(found.url)), i, found.after);
      else i += 1;
    } else if (c === "<" && match(ANGLE, s, i)) {
      const [whole, url] = match(ANGLE, s, i);
      take(el("a", linkTo(url), ...paint(url, at.slice(i + 1, i + 1 + url.length))), i, i + whole.length);
    } else if ((c === "h" || c === "H") && !IS_WORD.test(s[i - 1] ?? " ") && match(BARE, s, i)) {
      const url = match(BARE, s, i)[0].replace(/[.,:;!?)\]*_~]+$/, "");
      take(el("a", linkTo(url), ...paint(url, at.slice(i, i + url.length))), i, i + url.length);
    } else {
      i += 1;
    }
  }
  flush(s.length);
}

function linkTo(url) {
  return { href: url, target: "_blank", rel: "noopener noreferrer nofollow" };
}

function match(pattern, s, i) {
  pattern.lastIndex = i;
  return pattern.exec(s);
}

function runLength(s, i) {
  let end = i;
  while (s[end] === s[i]) end += 1;
  return end - i;
}

// Whether a run of marks may begin an emphasis.
function opens(s, i, size) {
  const before = s[i - 1] ?? " ";
  const after = s[i + size] ?? " ";
  if (/\s/.test(after) || size > 3) return false;
  if (s[i] === "~") return size === 2;
  return s[i] === "*" || !IS_WORD.test(before);
}

function emphasis(mark, size, inner) {
  if (mark === "~") return inner("del");
  if (size === 1) return inner("em");
  if (size === 2) return inner("strong");
  return el("strong", {}, inner("em"));
}

// Where the run that ends an emphasis begins; -1 where there is none. Code is stepped over.
function closingMark(s, start, mark, size, missing) {
  const key = mark + size;
  if (missing.has(key)) return -1;
  const noCode = new Set();
  for (let i = start; i < s.length; ) {
    if (s[i] === "\\") {
      i += 2;
    } else if (s[i] === "`") {
      const ticks = runLength(s, i);
      const end = closingRun(s, i + ticks, "`", ticks, noCode);
      i = end < 0 ? i + ticks : end + ticks;
    } else if (s[i] === mark) {
      const run = runLength(s, i);
      const ends = !/\s/.test(s[i - 1]) && (mark !== "_" || !IS_WORD.test(s[i + run] ?? " "));
      if (ends && i > start && run === size) return i;
      // Of a longer run, as in **bold *both***, the inner one comes first.
      if (ends && i > start && run > size && run === 3) return size === 1 ? i : i + 1;
      i += run;
    } else {
      i += 1;
    }
  }
  missing.add(key);
  return -1;
}

function closingRun(s, start, mark, size, missing) {
  const key = mark + size;
  if (missing.has(key)) return -1;
  for (let i = start; i < s.length; ) {
    if (s[i] === mark) {
      const run = runLength(s, i);
      if (run === size) return i;
      i += run;
    } else {
      i += 1;
    }
  }
  missing.add(key);
  return -1;
}

// Of `` `code` ``: without the space beside a backtick.
function trimmed(s, at, start, end) {
  const pads = end - start > 2 && s[start] === " " && s[end - 1] === " ";
  const [a, b] = pads ? [start + 1, end - 1] : [start, end];
  return [s.slice(a, b), at.slice(a, b)];
}

// A link [text](url "title") whose text begins at `open`; null for what is none, and for any url but the web's and mail's.
function linkAt(s, open, missing) {
  if (missing.has("[")) return null;
  let level = 0;
  let close = open;
  for (; close < s.length; close += 1) {
    if (s[close] === "\\") close += 1;
    else if (s[close] === "[") level += 1;
    else if (s[close] === "]" && --level === 0) break;
  }
  if (close >= s.length) {
    missing.add("[");
    return null;
  }
  if (s[close + 1] !== "(") return null;
  const target = /\(\s*<?((?:[^\s()<>\\]|\\.|\([^\s()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
  const found = match(target, s, close + 1);
  if (!found || !LINK.test(found[1])) return null;
  return { start: open + 1, end: close, url: found[1].replace(/\\(.)/g, "$1"), after: close + 1 + found[0].length };
}
