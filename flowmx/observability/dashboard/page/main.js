// Puts the page together: frames change the state, panels show it, the timeline rolls.

import { follow } from "./feed.js";
import { seconds } from "./format.js";
import { members } from "./members.js";
import { show } from "./panels.js";
import { applied, empty } from "./state.js";
import { set } from "./table.js";
import { forgetColours, install } from "./theme.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const WORDS = { live: "live", late: "late", gone: "gone", waiting: "connecting", paused: "paused" };

const state = empty();
const timeline = new Timeline($("timeline"), $("timeline-tip"), $("timeline-said"));
const still = matchMedia("(prefers-reduced-motion: reduce)");
let paused = false;
let begun = false;

function draw() {
  if (state.seq && !paused) {
    show(state);
    timeline.show(state.bars, state.now.actors ?? [], state.times.at(-1), state.now.epoch);
    $("timeline-empty").hidden = timeline.lanes.length > 0;
  }
  timeline.draw();
}

function stands(how, silent) {
  const word = paused && how === "live" ? "paused" : how;
  $("status").dataset.state = word;
  set($("status-text"), WORDS[word]);
  $("banner").hidden = how === "live" || how === "waiting";
  if (how === "late") set($("banner"), `Nothing was heard for ${seconds(silent)}: native code may hold the interpreter, or the machine is busy.`);
  if (how === "gone") set($("banner"), `The process ${begun ? "does not answer any more: it has ended, or its dashboard was stopped" : "does not answer"}. What is shown is what was known last; it goes on by itself when the process is back.`);
}

function press(button, pressed) {
  button.setAttribute("aria-pressed", String(pressed));
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  timeline.pause(paused);
  press($("pause"), paused);
  set($("pause"), paused ? "Go on" : "Pause");
  stands("live", 0);
  draw();
});

for (const each of document.querySelectorAll("[data-tone]")) each.style.setProperty("--tone", `var(--${each.dataset.tone})`);

for (const button of $("spans").children) {
  if (!button.hasAttribute("aria-pressed")) press(button, false);
  button.addEventListener("click", () => {
    for (const other of $("spans").children) press(other, other === button);
    timeline.span = Number(button.dataset.span);
    timeline.draw();
  });
}

install($("theme"), () => {
  forgetColours();
  draw();
});
new ResizeObserver(draw).observe($("content"));

function told(frame) {
  begun = true;
  applied(state, frame);
  draw();
}

if ("job" in document.body.dataset) {
  let turn = null;
  members($("members"), $("job-note"), (name) => {
    const address = `events?member=${encodeURIComponent(name)}`;
    begun = false;
    Object.assign(state, empty());
    if (turn) turn(address);
    else turn = follow(told, stands, address);
  });
} else {
  follow(told, stands, "events");
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
