// One message of the chat on the page.

import { copyButton, el } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { tokenPaint } from "./paint.js";
import { plainPaint } from "./markdown.js";

// `actions`: {retry, edit}, called with the message.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    const isUser = message.role === "user";
    this.body = el("div", { class: "body" });
    this.note = el("p", { class: "note", hidden: true });
    this.buttons = el("div", { class: "actions" });
    this.node = el(
      "article",
      { class: `message ${message.role}`, "aria-label": isUser ? "You" : "Answer" },
      this.body,
      this.note,
      this.buttons,
    );
    this.view = new MarkdownView(this.body);
  }

  show(isColoured, isRunning = false) {
    const { message } = this;
    if (isColoured !== this.wasColoured) this.view.clear();
    this.wasColoured = isColoured;
    if (message.role === "user") {
      this.body.textContent = message.content;
    } else {
      const paint = isColoured && message.tokens ? tokenPaint(message.content, message.tokens) : plainPaint;
      this.view.show(message.content, paint, !isRunning);
    }
    this.node.classList.toggle("running", isRunning);
    this.node.setAttribute("aria-busy", String(isRunning));
    this.showNote();
    if (isRunning !== this.wasRunning) this.showButtons(isRunning);
    this.wasRunning = isRunning;
  }

  showNote() {
    const { error, note } = this.message;
    this.note.hidden = !error && !note;
    this.note.textContent = error ?? note ?? "";
    this.note.classList.toggle("error", Boolean(error));
    if (error) this.note.setAttribute("role", "alert");
    else this.note.removeAttribute("role");
  }

  showButtons(isRunning) {
    const { message, actions } = this;
    const button = (label, act) => el("button", { type: "button", class: "quiet", onclick: act }, label);
    const copy = copyButton(() => message.content);
    const other =
      message.role === "user" ? button("Edit", () => this.edit()) : button("Retry", () => actions.retry(message));
    this.buttons.replaceChildren(...(isRunning ? [] : [copy, other]));
  }

  // The message in a field; what is sent replaces it and all that came after it.
  edit() {
    const field = el("textarea", { rows: "3", "aria-label": "Edit the message" });
    field.value = this.message.content;
    const close = () => {
      form.replaceWith(this.body);
      this.buttons.hidden = false;
    };
    const send = (event) => {
      event?.preventDefault();
      if (!field.value.trim()) return;
      close();
      this.actions.edit(this.message, field.value);
    };
    const form = el(
      "form",
      { class: "edit", onsubmit: send },
      field,
      el(
        "div",
        { class: "actions" },
        el("button", { type: "submit" }, "Send"),
        el("button", { type: "button", class: "quiet", onclick: close }, "Cancel"),
      ),
    );
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      if (event.key === "Escape") close();
      if (event.key === "Escape") event.stopPropagation();
    });
    this.body.replaceWith(form);
    this.buttons.hidden = true;
    field.focus();
  }
}
