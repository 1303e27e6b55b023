// One answer as it streams: its text, its tokens, and the counts that the page shows of it.

import { streamChat } from "./api.js";

export class Answer {
  constructor() {
    this.text = "";
    this.tokens = []; // {text, drafter, id}; drafter null where the token was not drafted
    this.counts = null; // of the drafts so far, as the server counts them
    this.usage = null;
    this.finishReason = null;
    this.startedAt = performance.now();
    this.times = []; // per chunk with tokens: {ms since the request was sent, tokens so far}
    this.endedAt = null;
  }

  // Ask, and call `changed` for each chunk. Errors are thrown; what came before them stays.
  async read(body, signal, changed) {
    try {
      for await (const chunk of streamChat({ ...body, include_speculation: true, return_token_ids: true }, signal)) {
        this.take(chunk);
        changed();
      }
    } finally {
      this.endedAt = performance.now();
    }
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.text += choice.delta?.content ?? "";
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const { tokens, ...counts } = choice.speculation ?? {};
    tokens?.forEach((token, k) => this.tokens.push({ ...token, id: choice.token_ids?.[k] }));
    if (choice.speculation) this.counts = { ...this.counts, ...counts };
    if (tokens?.length) this.times.push({ ms: performance.now() - this.startedAt, tokens: this.tokens.length });
  }

  get seconds() {
    return ((this.endedAt ?? performance.now()) - this.startedAt) / 1000;
  }

  get numTokens() {
    return Math.max(this.tokens.length, this.usage?.completion_tokens ?? 0);
  }

  // After the first tokens, as this page sees them come; null before there is anything to divide.
  get tokensPerSecond() {
    if (this.times.length < 2) return null;
    const [first, last] = [this.times[0], this.times[this.times.length - 1]];
    return last.ms > first.ms ? ((last.tokens - first.tokens) * 1000) / (last.ms - first.ms) : null;
  }

  get tokensPerStep() {
    return this.counts?.steps ? (this.numTokens - 1) / this.counts.steps : null;
  }
}
