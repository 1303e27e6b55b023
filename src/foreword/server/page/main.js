// Puts the page together: views, theme, keys, and who the server is.

import { getJson } from "./api.js";
import { isAnswering, lastPrompt, setModel, setUpChat, stop, toggleColours } from "./chat.js";
import { byId } from "./dom.js";
import { isRacing, setRaceModel, setUpRace, stopRace } from "./race.js";
import { openSettings, setUpSettings } from "./settings.js";
import { keep, kept } from "./storage.js";
import { watchStatus } from "./status.js";

const THEMES = ["auto", "light", "dark"];
const THEME = "foreword.theme";
const VIEWS = ["chat", "race", "status"];

function setUpTheme() {
  const button = byId("theme");
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  const chosen = kept("localStorage", THEME);
  show(THEMES.includes(chosen) ? chosen : "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    keep("localStorage", THEME, next);
    show(next);
  });
}

function showView(name) {
  for (const view of VIEWS) {
    const isShown = view === name;
    byId(view).hidden = !isShown;
    byId(`tab-${view}`).setAttribute("aria-selected", String(isShown));
    byId(`tab-${view}`).tabIndex = isShown ? 0 : -1;
  }
  history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
  watchStatus(name === "status");
}

function setUpTabs() {
  VIEWS.forEach((view, k) => {
    const tab = byId(`tab-${view}`);
    tab.addEventListener("click", () => showView(view));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = VIEWS[(k + step + VIEWS.length) % VIEWS.length];
      showView(next);
      byId(`tab-${next}`).focus();
    });
  });
  showView(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
}

function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "F2") {
      event.preventDefault();
      toggleColours();
    }
    if (event.key === "Escape" && !byId("settings").open) {
      if (isAnswering()) stop();
      if (isRacing()) stopRace();
    }
  });
  byId("more-numbers").addEventListener("click", () => {
    const isOpen = byId("numbers").classList.toggle("open");
    byId("more-numbers").setAttribute("aria-expanded", String(isOpen));
  });
}

async function meet() {
  const banner = byId("banner");
  try {
    const models = await getJson("v1/models");
    const name = models.data[0].id;
    setModel(name);
    setRaceModel(name);
    byId("model").textContent = name;
    banner.hidden = true;
  } catch (error) {
    byId("banner-text").textContent = error.message;
    banner.hidden = false;
    if (error.status === 401) openSettings("set-key");
  }
}

setUpTheme();
setUpSettings(meet);
setUpChat();
setUpRace(lastPrompt);
setUpTabs();
setUpKeys();
byId("reconnect").addEventListener("click", meet);
meet();
