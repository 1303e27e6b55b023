// The numbers beside an answer: how fast it came, and what became of the drafts.

import { byId, durationText, el, fixed, percent, whole } from "./dom.js";

const MOST_BARS = 8;
const NONE = "–";

export function showNumbers(answer) {
  const counts = answer?.counts;
  const speed = answer?.tokensPerSecond;
  const perStep = answer?.tokensPerStep;
  byId("n-speed").textContent = speed == null ? NONE : fixed(speed);
  byId("n-step").textContent = perStep == null ? NONE : fixed(perStep, 2);
  byId("n-accepted").textContent = counts?.drafted_tokens ? percent(counts.accepted_tokens / counts.drafted_tokens) : NONE;
  byId("n-accepted").title = counts ? `${whole(counts.accepted_tokens)} of ${whole(counts.drafted_tokens)} drafted tokens` : "";
  byId("n-saved").textContent = savedText(counts?.saved_s);
  byId("n-tokens").textContent = answer ? whole(answer.numTokens) : NONE;
  showDepths(byId("depths"), counts?.drafted_at_depth ?? [], counts?.accepted_at_depth ?? []);
}

function savedText(seconds) {
  if (seconds == null) return NONE;
  return seconds < 0 ? `−${durationText(-seconds)}` : durationText(seconds);
}

// Small bars: of the steps that drafted at least so deep, the share that accepted so deep.
export function showDepths(list, drafted, accepted) {
  const depths = drafted.slice(0, MOST_BARS);
  while (list.children.length > depths.length) list.lastChild.remove();
  depths.forEach((count, k) => {
    const share = count ? (accepted[k] ?? 0) / count : 0;
    const item = list.children[k] ?? list.appendChild(bar());
    item.children[0].textContent = String(k + 1);
    item.children[1].firstChild.style.setProperty("--share", share);
    item.children[2].textContent = percent(share);
    item.title = `${whole(accepted[k] ?? 0)} of ${whole(count)} drafted at depth ${k + 1} accepted`;
  });
  list.hidden = depths.length === 0;
  if (list.nextElementSibling) list.nextElementSibling.hidden = depths.length > 0;
}

function bar() {
  const track = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill" }));
  return el("li", {}, el("span", { class: "depth" }), track, el("span", { class: "share" }));
}
