"""The chat page: one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["POLICY", "page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
"""The page loads nothing, and speaks only with its service."""

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui;max-width:48rem;margin:0 auto;padding:1rem;display:flex;flex-direction:column;
  min-height:100vh;box-sizing:border-box}
header{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}
h1{font-size:1.1rem;margin:0;flex:1}
#messages{flex:1;margin:1rem 0}
.message{white-space:pre-wrap;overflow-wrap:anywhere;padding:.5rem .8rem;margin:.5rem 0;border-radius:.5rem;
  background:#8882}
.user{margin-left:20%;background:#48f3}
.error{background:#f443}
form{display:flex;gap:.5rem;position:sticky;bottom:0;padding:.5rem 0;background:Canvas}
textarea{flex:1;font:inherit;resize:vertical;min-height:2.5rem}
button,select,input{font:inherit}
#speed{min-height:1.5em;font-size:.85rem;opacity:.75}
"""
_SCRIPT = r"""
const base = location.href.replace(/\/chat\/?([?#].*)?$/, "");
const $ = (id) => document.getElementById(id);
let messages = [], running = null;

function show(role, text) {
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  $("messages").append(element);
  return element;
}

async function* events(response) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of response.body) {
    text += decoder.decode(chunk, {stream: true});
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts)
      if (part !== "data: [DONE]") yield JSON.parse(part.slice("data: ".length));
  }
}

async function ask() {
  const headers = {"Content-Type": "application/json"};
  if ($("token").value) headers.Authorization = `Bearer ${$("token").value}`;
  const body = {model: $("model").value, messages, stream: true, temperature: Number($("temperature").value)};
  const response = await fetch(`${base}/v1/chat/completions`,
    {method: "POST", headers, body: JSON.stringify(body), signal: running.signal});
  if (response.status === 401) $("access").hidden = false;
  if (!response.ok) {
    const {error} = await response.json();
    throw new Error(error.message ?? error);
  }
  return response;
}

async function reply() {
  const start = performance.now();
  let element = null, answer = {role: "assistant", content: ""}, count = 0;
  try {
    for await (const {choices, error} of events(await ask())) {
      if (error) throw new Error(error.message);
      element ??= show("assistant", "");
      answer.content += choices[0]?.delta.content ?? "";
      element.textContent = answer.content;
      count += 1;
      const seconds = (performance.now() - start) / 1000;
      $("speed").textContent = `${count} tokens, ${(count / seconds).toFixed(1)} per second`;
      element.scrollIntoView({block: "end"});
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  if (answer.content) messages.push(answer);
}

async function submit() {
  const text = $("text").value.trim();
  if (!text || running) return;
  running = new AbortController();
  $("text").value = "";
  $("send").textContent = "Stop";
  messages.push({role: "user", content: text});
  show("user", text);
  await reply();
  running = null;
  $("send").textContent = "Send";
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  running ? running.abort() : submit();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
$("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  $("messages").replaceChildren();
});
"""


def page(models: Sequence[str]) -> str:
    """Return the page, with a choice of models."""
    options = "".join(f"<option>{html.escape(name)}</option>" for name in models)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Chat</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>"
        f"<header><h1>Chat</h1><label>Model <select id='model'>{options}</select></label>"
        "<label>Temperature <input id='temperature' type='number' min='0' max='2' step='0.1' value='0.7'></label>"
        "<label id='access' hidden>Token <input id='token' type='password'></label>"
        "<button id='clear' type='button'>New chat</button></header>"
        "<main id='messages' aria-live='polite'></main><div id='speed'></div>"
        "<form id='form'><textarea id='text' rows='1' aria-label='Message' autofocus></textarea>"
        f"<button id='send'>Send</button></form><script>{_SCRIPT}</script></html>"
    )
