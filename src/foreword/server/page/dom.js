// Small helpers around the DOM. Text is only ever set as text: nothing on this page writes HTML.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

// Said to screen readers: a sentence when something begins or ends, never each token.
export function say(sentence) {
  byId("said").textContent = sentence;
}

export const fixed = (value, digits = 1) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const whole = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });

export const percent = (share) => `${fixed(100 * share, 0)}\u00a0%`;

export function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1) : 0;
  return `${fixed(bytes / 2 ** (10 * power), power ? 1 : 0)} ${units[power]}`;
}

export function durationText(seconds) {
  if (seconds < 1) return `${fixed(1000 * seconds, 0)} ms`;
  if (seconds < 60) return `${fixed(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A button that says for a moment that the text has been copied.
export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    const done = await copied(text());
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

// The clipboard's interface is there only on https and on this machine; elsewhere the old way.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "hidden", "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
