// Markdown's blocks: which lines belong together. A line is {s: "text", at: place of its first character in the answer};
// what a container takes off the front of a line moves `at` on.

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(?=\S)|[ \t]*$)/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 12;

export function linesOf(text) {
  const lines = [];
  let at = 0;
  for (const s of text.split("\n")) {
    lines.push({ s: s.endsWith("\r") ? s.slice(0, -1) : s, at });
    at += s.length + 1;
  }
  return lines;
}

export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i += 1;
      continue;
    }
    const read = depth < MAX_DEPTH ? READERS.find((reader) => reader.begins(lines, i)) : null;
    const [block, next] = read ? read.take(lines, i, depth) : paragraph(lines, i, depth);
    blocks.push({ ...block, start: lines[i].at, end: lines[next - 1].at + lines[next - 1].s.length });
    i = next;
  }
  return blocks;
}

const isBlank = (line) => /^\s*$/.test(line.s);
const indentOf = (line) => /^[ \t]*/.exec(line.s)[0].length;
const cut = (line, count) => ({ s: line.s.slice(count), at: line.at + count });

const READERS = [
  { begins: (lines, i) => FENCE.test(lines[i].s), take: code },
  { begins: (lines, i) => HEADING.test(lines[i].s), take: heading },
  { begins: (lines, i) => RULE.test(lines[i].s), take: (_, i) => [{ type: "rule" }, i + 1] },
  { begins: (lines, i) => QUOTE.test(lines[i].s), take: quote },
  { begins: (lines, i) => ITEM.test(lines[i].s), take: list },
  { begins: isTable, take: table },
];

function paragraph(lines, i, depth) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end += 1;
  return [{ type: "paragraph", lines: lines.slice(i, end).map((line) => cut(line, indentOf(line))) }, end];
}

function interrupts(lines, i, depth) {
  if (depth >= MAX_DEPTH) return false;
  const item = ITEM.exec(lines[i].s);
  // As in CommonMark: of numbered lists only one that begins with 1 ends a paragraph.
  if (item && !RULE.test(lines[i].s)) return item[3] !== undefined && [NaN, 1].includes(parseInt(item[2], 10));
  return READERS.some((reader) => reader.begins(lines, i) && reader.take !== list);
}

function code(lines, i) {
  const [, indent, fence, info] = FENCE.exec(lines[i].s);
  const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`);
  let end = i + 1;
  while (end < lines.length && !closing.test(lines[end].s)) end += 1;
  const inside = lines.slice(i + 1, end).map((line) => cut(line, Math.min(indent.length, indentOf(line))));
  const isClosed = end < lines.length;
  return [{ type: "code", language: info.trim().split(/\s/)[0], lines: inside, isClosed }, isClosed ? end + 1 : end];
}

function heading(lines, i) {
  const [, marks, title] = HEADING.exec(lines[i].s);
  const start = title ? lines[i].s.indexOf(title, lines[i].s.indexOf(marks) + marks.length) : 0;
  const line = { s: title ?? "", at: lines[i].at + start };
  return [{ type: "heading", level: marks.length, lines: [line] }, i + 1];
}

function quote(lines, i, depth) {
  const inside = [];
  let end = i;
  while (end < lines.length) {
    const mark = QUOTE.exec(lines[end].s);
    if (mark) inside.push(cut(lines[end], mark[0].length));
    else if (isBlank(lines[end]) || interrupts(lines, end, depth)) break;
    else inside.push(lines[end]); // the paragraph goes on without a mark
    end += 1;
  }
  return [{ type: "quote", blocks: parseBlocks(inside, depth + 1) }, end];
}

function list(lines, i, depth) {
  const [, , first] = ITEM.exec(lines[i].s);
  const isOrdered = /\d/.test(first);
  const items = [];
  let isLoose = false;
  let end = i;
  while (end < lines.length) {
    const mark = RULE.test(lines[end].s) ? null : ITEM.exec(lines[end].s);
    if (!mark || mark[2].slice(-1) !== first.slice(-1)) break;
    const [item, next] = itemLines(lines, end, mark, depth);
    items.push(parseBlocks(item, depth + 1));
    isLoose ||= item.some((line, k) => k > 0 && isBlank(line) && k < item.length - 1);
    end = next;
    let after = end;
    while (after < lines.length && isBlank(lines[after])) after += 1;
    if (after > end && after < lines.length && sameList(lines[after], first)) {
      isLoose = true;
      end = after;
    }
  }
  return [{ type: "list", isOrdered, first: isOrdered ? parseInt(first, 10) : 1, isLoose, items }, end];
}

function sameList(line, first) {
  const mark = RULE.test(line.s) ? null : ITEM.exec(line.s);
  return mark !== null && mark[2].slice(-1) === first.slice(-1);
}

// The lines of one item, without its mark. What is indented by two belongs to it, as models write lists.
function itemLines(lines, i, mark, depth) {
  const width = mark[0].length;
  const inside = [cut(lines[i], width)];
  const least = Math.min(width, mark[1].length + 2);
  let end = i + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (isBlank(line)) {
      const after = lines.slice(end).find((later) => !isBlank(later));
      if (!after || indentOf(after) < least) break;
      inside.push(cut(line, line.s.length));
    } else if (indentOf(line) >= least) {
      inside.push(cut(line, Math.min(indentOf(line), width)));
    } else if (ITEM.test(line.s) || isBlank(lines[end - 1]) || interrupts(lines, end, depth)) {
      break;
    } else {
      inside.push(line); // its paragraph goes on
    }
    end += 1;
  }
  return [inside, end];
}

function isTable(lines, i) {
  if (!lines[i].s.includes("|") || i + 1 >= lines.length || !DIVIDER.test(lines[i + 1].s)) return false;
  return cells(lines[i]).length === cells(lines[i + 1]).length;
}

function table(lines, i) {
  const sides = cells(lines[i + 1]).map(({ s }) => (s.endsWith(":") ? (s.startsWith(":") ? "center" : "right") : "left"));
  let end = i + 2;
  while (end < lines.length && lines[end].s.includes("|") && !isBlank(lines[end])) end += 1;
  const rows = lines.slice(i + 2, end).map(cells);
  return [{ type: "table", sides, head: cells(lines[i]), rows }, end];
}

function cells(line) {
  const found = [];
  let start = 0;
  let inCode = false;
  for (let i = 0; i <= line.s.length; i += 1) {
    if (line.s[i] === "\\") i += 1;
    else if (line.s[i] === "`") inCode = !inCode && line.s.indexOf("`", i + 1) > 0;
    else if ((line.s[i] === "|" && !inCode) || i === line.s.length) {
      const cell = cut({ s: line.s.slice(0, i), at: line.at }, start);
      const indent = indentOf(cell);
      found.push({ s: cell.s.trim(), at: cell.at + indent });
      start = i + 1;
    }
  }
  if (found.length > 1 && found[0].s === "") found.shift();
  if (found.length > 1 && found[found.length - 1].s === "") found.pop();
  return found;
}
