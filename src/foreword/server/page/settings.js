// The settings of requests. They stay in this browser; the API key only as long as this tab.

import { byId } from "./dom.js";
import { keep, kept } from "./storage.js";

const STORE = "foreword.settings";
const KEY = "foreword.key";
// Each field's value goes into the request under its name; an empty one leaves the server's default.
const NUMBERS = { temperature: parseFloat, top_p: parseFloat, max_tokens: (v) => parseInt(v, 10), seed: (v) => parseInt(v, 10) };
const DEFAULTS = { temperature: "0.7", top_p: "0.95", max_tokens: "512", seed: "", system: "", drafting: true };

let values = { ...DEFAULTS };
let key = "";

export const keyOf = () => key;
export const isDrafting = () => values.drafting;
export const systemPrompt = () => values.system.trim();

// The sampling options as a request has them.
export function samplingOptions() {
  const options = {};
  for (const [name, read] of Object.entries(NUMBERS)) {
    const value = read(values[name]);
    if (Number.isFinite(value)) options[name] = value;
  }
  return options;
}

export function setUpSettings(changed) {
  values = { ...DEFAULTS, ...kept("localStorage", STORE) };
  key = kept("sessionStorage", KEY) ?? "";
  const dialog = byId("settings");
  for (const name of Object.keys(DEFAULTS)) {
    const field = byId(`set-${name}`);
    show(field, values[name]);
    field.addEventListener("change", () => {
      if (!field.checkValidity()) {
        field.reportValidity();
        return;
      }
      values[name] = field.type === "checkbox" ? field.checked : field.value;
      keep("localStorage", STORE, values);
      changed();
    });
  }
  const keyField = byId("set-key");
  keyField.value = key;
  keyField.addEventListener("change", () => {
    key = keyField.value.trim();
    keep("sessionStorage", KEY, key);
    changed();
  });
  byId("open-settings").addEventListener("click", () => openSettings());
  byId("close-settings").addEventListener("click", () => dialog.close());
  byId("reset-settings").addEventListener("click", () => {
    values = { ...DEFAULTS };
    for (const name of Object.keys(DEFAULTS)) show(byId(`set-${name}`), values[name]);
    keep("localStorage", STORE, values);
    changed();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

export function openSettings(field = "set-temperature") {
  byId("settings").showModal();
  byId(field).focus();
}

function show(field, value) {
  if (field.type === "checkbox") field.checked = value;
  else field.value = value;
}
