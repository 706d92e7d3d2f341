// Connects the parts of the page: frames update the state, panels render it, the timeline scrolls.

import { follow } from "./feed.js";
import { seconds } from "./format.js";
import { members } from "./members.js";
import { show } from "./panels.js";
import { applyFrame, empty } from "./state.js";
import { set } from "./table.js";
import { forgetColors, install } from "./theme.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const WORDS = { live: "live", late: "late", gone: "gone", waiting: "connecting", paused: "paused" };

const state = empty();
const timeline = new Timeline($("timeline"), $("timeline-tip"), $("timeline-status"));
const still = matchMedia("(prefers-reduced-motion: reduce)");
let paused = false;
let connected = false;

function draw() {
  if (state.seq && !paused) {
    show(state);
    timeline.show(state.bars, state.now.actors ?? [], state.times.at(-1), state.now.epoch);
    $("timeline-empty").hidden = timeline.lanes.length > 0;
  }
  timeline.draw();
}

function onStatus(status, silent) {
  const word = paused && status === "live" ? "paused" : status;
  $("status").dataset.state = word;
  set($("status-text"), WORDS[word]);
  $("banner").hidden = status === "live" || status === "waiting";
  if (status === "late") set($("banner"), `No data for ${seconds(silent)}: native code may hold the GIL, or the machine is busy.`);
  if (status === "gone") set($("banner"), `The process does not respond${connected ? ": it has exited, or its dashboard was stopped" : ""}. The page shows its last state, and reconnects automatically.`);
}

function press(button, pressed) {
  button.setAttribute("aria-pressed", String(pressed));
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  timeline.pause(paused);
  press($("pause"), paused);
  set($("pause"), paused ? "Resume" : "Pause");
  onStatus("live", 0);
  draw();
});

for (const element of document.querySelectorAll("[data-tone]")) element.style.setProperty("--tone", `var(--${element.dataset.tone})`);

for (const button of $("spans").children) {
  if (!button.hasAttribute("aria-pressed")) press(button, false);
  button.addEventListener("click", () => {
    for (const other of $("spans").children) press(other, other === button);
    timeline.span = Number(button.dataset.span);
    timeline.draw();
  });
}

install($("theme"), () => {
  forgetColors();
  draw();
});
new ResizeObserver(draw).observe($("content"));

function onFrame(frame) {
  connected = true;
  applyFrame(state, frame);
  draw();
}

if ("job" in document.body.dataset) {
  let switchTo = null;
  members($("members"), $("job-note"), (name) => {
    const address = `events?member=${encodeURIComponent(name)}`;
    connected = false;
    Object.assign(state, empty());
    if (switchTo) switchTo(address);
    else switchTo = follow(onFrame, onStatus, address);
  });
} else {
  follow(onFrame, onStatus, "events");
}

let drawn = 0;
function roll(now) {
  if (!still.matches && !paused && now - drawn > (timeline.span < 5 ? 30 : 60) && state.seq) {
    drawn = now;
    timeline.draw();
  }
  requestAnimationFrame(roll);
}
requestAnimationFrame(roll);
