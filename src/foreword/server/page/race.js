// The race: one prompt and one seed, with and without drafting.
//
// One after the other, each has the processor to itself, and the times are what they are. Both at once share it. The
// prompt is read once before, so that both find it in the prefix cache; the drafted run comes first, so that its
// drafter cannot have seen the answer.

import { Answer } from "./answer.js";
import { ApiError, getJson } from "./api.js";
import { byId, durationText, fixed, say, whole } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { tokenPaint } from "./paint.js";
import { openSettings, samplingOptions, systemPrompt } from "./settings.js";

let modelName = "";
let controller = null;
let replay = null; // the animation frame of a replay

export const setRaceModel = (name) => (modelName = name);
export const isRacing = () => controller !== null;
export const stopRace = () => controller?.abort();

class Lane {
  constructor(id, isDrafted) {
    this.isDrafted = isDrafted;
    this.part = (name) => byId(`${id}-${name}`);
  }

  reset() {
    this.answer = null;
    this.part("text").replaceChildren();
    this.show(0, 0, null);
  }

  async run(body, signal) {
    this.answer = new Answer();
    const timer = setInterval(() => this.tick(), 100);
    try {
      await this.answer.read({ ...body, speculative: { enabled: this.isDrafted } }, signal, () => this.tick());
    } finally {
      clearInterval(timer);
      this.finish();
    }
  }

  tick() {
    this.part("text").textContent = this.answer.text;
    this.show(this.answer.seconds, this.answer.numTokens, this.answer.tokensPerSecond);
    this.part("text").scrollTop = this.part("text").scrollHeight;
  }

  finish() {
    this.tick();
    this.part("text").replaceChildren();
    renderMarkdown(this.part("text"), this.answer.text, tokenPaint(this.answer.text, this.answer.tokens));
  }

  show(seconds, tokens, speed) {
    this.part("clock").textContent = `${fixed(seconds)} s`;
    this.part("tokens").textContent = `${whole(tokens)} tokens${speed == null ? "" : `, ${fixed(speed)} per second`}`;
  }

  // As it was at a time after the request was sent.
  showAt(ms) {
    const { answer } = this;
    const seen = answer.times.findLast((time) => time.ms <= ms);
    const tokens = answer.tokens.slice(0, seen?.tokens ?? 0);
    const isOver = ms >= answer.endedAt - answer.startedAt;
    this.part("text").textContent = isOver ? answer.text : tokens.map((token) => token.text).join("");
    this.show(isOver ? answer.seconds : ms / 1000, isOver ? answer.numTokens : tokens.length, isOver ? answer.tokensPerSecond : null);
    this.part("text").scrollTop = this.part("text").scrollHeight;
    if (isOver) this.finish();
    return isOver;
  }
}

const lanes = {};

export function setUpRace(promptOf) {
  Object.assign(lanes, { drafted: new Lane("drafted", true), plain: new Lane("plain", false) });
  byId("race-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!isRacing()) start();
  });
  byId("race-stop").addEventListener("click", stopRace);
  byId("replay").addEventListener("click", startReplay);
  byId("race-prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("race-form").requestSubmit();
  });
  byId("tab-race").addEventListener("click", () => {
    if (!byId("race-prompt").value) byId("race-prompt").value = promptOf();
  });
}

async function start() {
  const prompt = byId("race-prompt").value.trim();
  if (!prompt) return;
  cancelAnimationFrame(replay);
  const body = bodyOf(prompt);
  const atOnce = byId("race-at-once").checked;
  controller = new AbortController();
  const { signal } = controller;
  showRacing(true);
  verdict("Reading the prompt …");
  try {
    const others = (await getJson("v1/status")).engine.num_running;
    await new Answer().read({ ...body, max_tokens: 1, speculative: { enabled: false } }, signal, () => {});
    verdict(atOnce ? "Both are running, and share the processor." : "Running with drafting …");
    say("The race has begun.");
    if (atOnce) {
      await Promise.all([lanes.drafted.run(body, signal), lanes.plain.run(body, signal)]);
    } else {
      await lanes.drafted.run(body, signal);
      verdict("Running without drafting …");
      await lanes.plain.run(body, signal);
    }
    judge(atOnce, others);
  } catch (error) {
    stopRace();
    fail(error);
  }
  controller = null;
  showRacing(false);
}

function bodyOf(prompt) {
  const system = systemPrompt();
  const options = samplingOptions();
  const seed = options.seed ?? Math.floor(Math.random() * 2 ** 31);
  byId("race-seed").textContent = `seed ${seed}, temperature ${options.temperature ?? "of the server"}`;
  const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  return { model: modelName, messages, ...options, seed };
}

function showRacing(isRacingNow) {
  byId("race-start").hidden = isRacingNow;
  byId("race-stop").hidden = !isRacingNow;
  if (!isRacingNow) return;
  byId("replay").hidden = true;
  for (const lane of Object.values(lanes)) lane.reset();
}

function verdict(text, kind = "") {
  byId("verdict").textContent = text;
  byId("verdict").className = `verdict ${kind}`;
}

function judge(atOnce, others) {
  const [drafted, plain] = [lanes.drafted.answer, lanes.plain.answer];
  const difference = firstDifference(drafted.tokens, plain.tokens);
  const times = `${durationText(drafted.seconds)} with drafting, ${durationText(plain.seconds)} without`;
  const disturbed = others ? " The server was answering others too, which makes the times uneven." : "";
  const ratio = `${fixed(plain.seconds / drafted.seconds, 2)} times as fast`;
  if (difference < 0 && drafted.text === plain.text) {
    verdict(`Same tokens: all ${whole(plain.tokens.length)} are equal. ${ratio} (${times})${atOnce ? ", sharing the processor" : ""}.${disturbed}`, "good");
  } else {
    verdict(`Not the same tokens: they differ from token ${difference + 1} on. ${times}.`, "bad");
  }
  byId("replay").hidden = atOnce;
  say(byId("verdict").textContent);
}

// The first token that differs; -1 where all are equal.
export function firstDifference(a, b) {
  for (let k = 0; k < Math.max(a.length, b.length); k += 1) {
    if (a[k]?.id !== b[k]?.id || a[k]?.text !== b[k]?.text) return k;
  }
  return -1;
}

function fail(error) {
  if (error.name === "AbortError") verdict("Stopped.");
  else if (error instanceof ApiError) verdict(error.message, "bad");
  else throw error;
  if (error.status === 401) openSettings("set-key");
}

// Both runs again side by side, with the times that were taken when each ran alone.
function startReplay() {
  const begun = performance.now();
  cancelAnimationFrame(replay);
  const frame = () => {
    const ms = performance.now() - begun;
    const areOver = Object.values(lanes).map((lane) => lane.showAt(ms));
    if (!areOver.every(Boolean)) replay = requestAnimationFrame(frame);
  };
  frame();
}
