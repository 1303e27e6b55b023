// The status view: what the server is doing, asked every two seconds while it is looked at.

import { getJson } from "./api.js";
import { byId, durationText, el, fixed, percent, sizeText, whole } from "./dom.js";
import { showDepths } from "./numbers.js";

const EVERY_MS = 2000;
let timer = null;
let before = null; // the last status, for rates: {at, tokens}

export function watchStatus(isShown) {
  clearInterval(timer);
  before = null;
  if (!isShown) return;
  refresh();
  timer = setInterval(() => !document.hidden && refresh(), EVERY_MS);
}

async function refresh() {
  try {
    const status = await getJson("v1/status");
    show(status);
    byId("status-note").textContent = "";
  } catch (error) {
    byId("status-note").textContent = error.message;
    before = null;
  }
}

function show({ model, engine, memory, uptime_s: uptime, version }) {
  const now = performance.now();
  const rate = before ? ((engine.generated_tokens - before.tokens) * 1000) / (now - before.at) : null;
  before = { at: now, tokens: engine.generated_tokens };
  facts("status-now", [
    ["Running requests", `${whole(engine.num_running)} of ${whole(model.batch_size)}`],
    ["Waiting requests", whole(engine.num_waiting)],
    ["Tokens per second, all requests", rate == null ? "–" : fixed(rate)],
  ]);
  facts("status-memory", [
    ["KV cache", memory.kv_cache_limit_bytes ? `${sizeText(engine.kv_cache_bytes)} of ${sizeText(memory.kv_cache_limit_bytes)}` : sizeText(engine.kv_cache_bytes)],
    ["of which prefix cache", sizeText(engine.prefix_cache_bytes)],
    ["Process", memory.process_bytes == null ? "–" : sizeText(memory.process_bytes)],
  ]);
  facts("status-prefix", [
    ["Prompts that found a prefix", shareText(engine.prefix_cache_hits, engine.prefix_cache_queries)],
    ["Prompt tokens not read again", shareText(engine.cached_tokens, engine.prompt_tokens)],
    ["Evicted", whole(engine.prefix_cache_evictions)],
  ]);
  facts("status-times", [
    ["Time to first token, mean", meanText(engine.time_to_first_token)],
    ["Time between tokens, mean", meanText(engine.time_between_tokens)],
    ["Time in the queue, mean", meanText(engine.queue_time)],
  ]);
  facts("status-model", [
    ["Model", model.name],
    ["Runtime", `${model.runtime}, ${model.dtype}`],
    ["Drafter", model.drafter],
    ["Context", `${whole(model.context_len)} tokens`],
    ["Up for", durationText(uptime)],
    ["Version", version],
  ]);
  facts("status-totals", [
    ["Answers", Object.entries(engine.finished).map(([reason, count]) => `${reason} ${whole(count)}`).join(", ") || "none yet"],
    ["Tokens generated", whole(engine.generated_tokens)],
    ["Tokens per pass, all requests", engine.num_steps ? fixed(engine.generated_tokens / engine.num_steps, 2) : "–"],
  ]);
  showDrafters(engine.drafters);
}

function facts(id, rows) {
  byId(id).replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

const shareText = (part, all) => (all ? `${whole(part)} of ${whole(all)} (${percent(part / all)})` : "none yet");

function meanText({ counts, total_s: total }) {
  const count = counts.reduce((sum, value) => sum + value, 0);
  return count ? durationText(total / count) : "–";
}

function showDrafters(drafters) {
  const boxes = Object.entries(drafters).map(([name, counts]) => {
    const bars = el("ol", { class: "depths", "aria-label": `Acceptance by depth, ${name}` });
    showDepths(bars, counts.drafted_at_depth, counts.accepted_at_depth);
    const share = shareText(counts.accepted_tokens, counts.drafted_tokens);
    return el("div", {}, el("h3", {}, name), el("p", {}, `${share} drafted tokens accepted`), bars);
  });
  byId("status-drafters").replaceChildren(...(boxes.length ? boxes : [el("p", { class: "faint" }, "No drafts yet.")]));
}
