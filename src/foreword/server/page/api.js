// Talking to the server: the OpenAI chat completions format, streamed as server-sent events.

import { keyOf } from "./settings.js";

// What went wrong, in a sentence for the user. `status` 0: the server cannot be reached; `retryAfter` in seconds.
export class ApiError extends Error {
  constructor(message, status, retryAfter = null) {
    super(message);
    Object.assign(this, { status, retryAfter });
  }
}

const GONE = "The server does not answer. Check that it is still running, then try again.";
const CUT = "The connection ended before the answer was complete.";

async function request(path, options = {}) {
  const key = keyOf();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(GONE, 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const said = body.error?.message ?? body.detail ?? response.statusText;
  const retryAfter = parseInt(response.headers.get("Retry-After"), 10);
  return new ApiError(sentence(response.status, String(said)), response.status, retryAfter || null);
}

function sentence(status, said) {
  if (status === 401) return `The server wants an API key, or another one (${said}). Enter it in the settings.`;
  if (status === 429) return `The server is busy: ${said}`;
  if (status >= 500) return `The server failed: ${said}`;
  return said;
}

export async function getJson(path) {
  return (await request(path)).json();
}

// The chunks of a streamed answer. Ends with an ApiError where the server reports one or the stream is cut off.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(sentence(500, chunk.error.message), 500);
    yield chunk;
  }
  throw new ApiError(CUT, 0);
}

// The data of each event.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (waiting + value).split(/\r?\n\r?\n/);
      waiting = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(CUT, 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}
