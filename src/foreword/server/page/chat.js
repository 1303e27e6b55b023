// The chat: messages, sending, stopping, trying again, editing, and keeping the conversation over a reload.

import { Answer } from "./answer.js";
import { ApiError } from "./api.js";
import { byId, say, whole } from "./dom.js";
import { MessageView } from "./message.js";
import { showNumbers } from "./numbers.js";
import { showLegend } from "./paint.js";
import { isDrafting, openSettings, samplingOptions, systemPrompt } from "./settings.js";
import { keep, kept } from "./storage.js";

const STORE = "foreword.chat";
const CUT = "The answer was cut: it reached the most tokens (see Settings), the model's context, or the server's time limit.";
const LEFT = "Stopped when the page was left.";

let messages = [];
let views = new Map(); // message -> its view
let running = null; // {controller, answer, message}
let isColoured = false;
let modelName = "";
let isLeaving = false; // then a connection that ends is no fault of the server

export const isAnswering = () => running !== null;
export const lastPrompt = () => messages.findLast((message) => message.role === "user")?.content ?? "";

export function setUpChat() {
  const field = byId("prompt");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) return;
    const text = field.value.trim();
    if (!text) return;
    field.value = "";
    fit(field);
    send(text);
  });
  field.addEventListener("input", () => fit(field));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  byId("stop").addEventListener("click", stop);
  byId("new-chat").addEventListener("click", newChat);
  byId("colours").addEventListener("click", toggleColours);
  messages = kept("sessionStorage", STORE) ?? [];
  showAll();
  const last = messages.findLast((message) => message.role === "assistant");
  showNumbers(last ? Object.assign(new Answer(), last.answer) : null);
  showLegend(last?.tokens ?? []);
}

export function setModel(name) {
  modelName = name;
}

export function toggleColours() {
  isColoured = !isColoured;
  byId("colours").setAttribute("aria-pressed", String(isColoured));
  byId("legend-box").hidden = !isColoured;
  document.body.classList.toggle("coloured", isColoured);
  for (const [message, view] of views) view.show(isColoured, running?.message === message);
  say(isColoured ? "Tokens are coloured by who proposed them." : "Colours are off.");
}

export function stop() {
  running?.controller.abort();
}

// What has begun to answer is not asked for any more.
function leave() {
  stop();
  running = null;
  showRunning();
}

function newChat() {
  leave();
  messages = [];
  keepMessages();
  showAll();
  showNumbers(null);
  showLegend([]);
  byId("prompt").focus();
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

const actions = {
  retry: (message) => {
    if (running) return;
    messages = messages.slice(0, messages.indexOf(message));
    showAll();
    ask();
  },
  edit: (message, text) => {
    leave();
    messages = messages.slice(0, messages.indexOf(message));
    showAll();
    send(text);
  },
};

function send(text) {
  messages.push({ role: "user", content: text });
  showAll();
  ask();
}

async function ask() {
  const message = { role: "assistant", content: "", tokens: [] };
  const asked = conversation();
  messages.push(message);
  const run = { controller: new AbortController(), answer: new Answer(), message };
  running = run;
  showAll();
  showRunning();
  say("The answer begins.");
  let isWaiting = false;
  const changed = () => {
    if (isWaiting) return;
    isWaiting = true; // many chunks, one picture
    requestAnimationFrame(() => {
      isWaiting = false;
      if (running === run) showProgress(run);
    });
  };
  const body = { model: modelName, messages: asked, ...samplingOptions(), speculative: { enabled: isDrafting() } };
  try {
    await run.answer.read(body, run.controller.signal, changed);
    if (run.answer.finishReason === "length") message.note = CUT;
  } catch (error) {
    explain(error, message);
  }
  finish(run);
}

function explain(error, message) {
  if (error.name === "AbortError") {
    message.note = "Stopped.";
    return;
  }
  if (!(error instanceof ApiError)) throw error;
  if (isLeaving) {
    message.note = LEFT;
    return;
  }
  message.error = error.message + (error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "");
  if (error.status === 401) openSettings("set-key");
}

function finish(run) {
  const { message, answer } = run;
  take(message, answer);
  if (running !== run) return; // it was left
  running = null;
  views.get(message)?.show(isColoured);
  showNumbers(answer);
  showLegend(answer.tokens);
  showRunning();
  keepMessages();
  const end = message.error ?? message.note ?? "";
  say(`Answer complete, ${whole(answer.numTokens)} tokens. ${end} ${message.content.slice(0, 600)}`);
  follow();
}

function take(message, answer) {
  message.content = answer.text;
  message.tokens = answer.tokens;
  const { counts, times, startedAt, endedAt } = answer;
  message.answer = { counts, startedAt, endedAt, tokens: answer.tokens, times: times.length ? [times[0], times.at(-1)] : [] };
}

function showProgress(run) {
  take(run.message, run.answer);
  views.get(run.message)?.show(isColoured, true);
  showNumbers(run.answer);
  if (isColoured) showLegend(run.answer.tokens);
  follow();
}

function showRunning() {
  const isRunning = running !== null;
  const hadFocus = document.activeElement === byId("stop") || document.activeElement === byId("send");
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  if (hadFocus) byId(isRunning ? "stop" : "send").focus();
}

// What the model is asked: without answers that failed before their first word.
function conversation() {
  const system = systemPrompt();
  const turns = messages
    .filter((message) => message.role === "user" || message.content)
    .map(({ role, content }) => ({ role, content }));
  return [...(system ? [{ role: "system", content: system }] : []), ...turns];
}

function showAll() {
  const fresh = new Map();
  for (const message of messages) {
    const view = views.get(message) ?? new MessageView(message, actions);
    view.show(isColoured, running?.message === message);
    fresh.set(message, view);
  }
  for (const [message, view] of views) if (!fresh.has(message)) view.node.remove();
  views = fresh;
  byId("messages").append(...[...views.values()].map((view) => view.node));
  byId("welcome").hidden = messages.length > 0;
  follow(true);
}

// Stay at the end of the conversation, unless the reader has scrolled away from it.
function follow(always = false) {
  const box = byId("scroll");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

function keepMessages() {
  keep("sessionStorage", STORE, messages);
}

window.addEventListener("beforeunload", () => {
  isLeaving = true;
  setTimeout(() => (isLeaving = false), 1000); // it was a link to a mail program
});

// A reload in the middle of an answer keeps what had come.
window.addEventListener("pagehide", () => {
  if (running) {
    take(running.message, running.answer);
    running.message.note = LEFT;
  }
  keepMessages();
});
