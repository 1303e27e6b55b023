// Markdown to DOM nodes. Raw HTML is text like any other.

import { parseBlocks, linesOf } from "./blocks.js";
import { copyButton, el } from "./dom.js";
import { renderInline } from "./inline.js";

export const plainPaint = (s) => [document.createTextNode(s)];

// Shows a growing answer: what has not changed since the last time keeps its nodes, but for the last block.
export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.shown = []; // {key, node} per block
  }

  clear() {
    this.shown = [];
    this.parent.replaceChildren();
  }

  show(text, paint = plainPaint, isFinished = true) {
    const blocks = parseBlocks(linesOf(text));
    const keys = blocks.map((block) => `${block.start} ${text.slice(block.start, block.end)}`);
    let same = 0;
    const last = isFinished ? keys.length : keys.length - 1; // its tokens may still come
    while (same < Math.min(this.shown.length, last) && this.shown[same].key === keys[same] && this.shown[same].isFinal) {
      same += 1;
    }
    for (const { node } of this.shown.splice(same)) node.remove();
    blocks.slice(same).forEach((block, k) => {
      const node = blockNode(block, paint);
      this.parent.append(node);
      this.shown.push({ key: keys[same + k], node, isFinal: same + k < last });
    });
  }
}

export function renderMarkdown(parent, text, paint = plainPaint) {
  for (const block of parseBlocks(linesOf(text))) parent.append(blockNode(block, paint));
}

function blockNode(block, paint) {
  switch (block.type) {
    case "paragraph":
      return inlineNode("p", block.lines, paint);
    case "heading": // the page's own headings come before an answer's
      return inlineNode(`h${Math.min(block.level + 2, 6)}`, block.lines, paint);
    case "rule":
      return el("hr");
    case "code":
      return codeNode(block, paint);
    case "quote":
      return el("blockquote", {}, ...block.blocks.map((inner) => blockNode(inner, paint)));
    case "list":
      return listNode(block, paint);
    case "table":
      return tableNode(block, paint);
  }
  throw new Error(`no such block: ${block.type}`);
}

function inlineNode(tag, lines, paint, attributes = {}) {
  const node = el(tag, attributes);
  renderInline(node, joined(lines), paint);
  return node;
}

// Lines as one text with the place of each of its characters.
function joined(lines) {
  const at = [];
  lines.forEach((line, k) => {
    for (let i = 0; i < line.s.length; i += 1) at.push(line.at + i);
    if (k < lines.length - 1) at.push(line.at + line.s.length);
  });
  return { s: lines.map((line) => line.s).join("\n"), at };
}

function codeNode(block, paint) {
  const { s, at } = joined(block.lines);
  const name = block.language || "code";
  const head = el("div", { class: "code-head" }, el("span", {}, name), copyButton(() => s));
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": `${name} block` }, el("code", {}, ...paint(s, at)));
  return el("div", { class: "code" }, head, pre);
}

function listNode(block, paint) {
  const node = el(block.isOrdered ? "ol" : "ul", block.isOrdered && block.first !== 1 ? { start: block.first } : {});
  for (const blocks of block.items) {
    const item = el("li");
    for (const inner of blocks) {
      if (inner.type === "paragraph" && !block.isLoose) renderInline(item, joined(inner.lines), paint);
      else item.append(blockNode(inner, paint));
    }
    node.append(item);
  }
  return node;
}

function tableNode(block, paint) {
  const row = (tag, cells) =>
    el(
      "tr",
      {},
      ...block.sides.map((side, k) => inlineNode(tag, cells[k] ? [cells[k]] : [], paint, { class: `to-${side}` })),
    );
  const head = el("thead", {}, row("th", block.head));
  const body = el("tbody", {}, ...block.rows.map((cells) => row("td", cells)));
  const wrap = { class: "table", tabindex: "0", role: "group", "aria-label": "table" };
  return el("div", wrap, el("table", {}, head, body));
}
