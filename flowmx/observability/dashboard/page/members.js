// The processes of a job: a row for each, whose button shows that process on the rest of the page.

import * as format from "./format.js";
import { fill, set } from "./table.js";

const CLASSES = [null, null, "number", "number", "number", "number", "number", null];

// Shows the rows that come in, and calls chosen(name) for the process that is looked at: the first one, until another is.
export function members(table, note, chosen) {
  let rows = [];
  let current = null;

  function choose(name) {
    current = name;
    show();
    chosen(name);
  }

  function show() {
    fill(table.tBodies[0], rows.map(cells), CLASSES);
    rows.forEach(({ name }, index) => button(table.tBodies[0].rows[index].cells[0], name));
    const live = rows.filter((row) => row.live).length;
    set(note, rows.length ? `${live} of ${rows.length} processes answer` : "No process has announced a dashboard yet.");
  }

  function button(cell, name) {
    const found = cell.querySelector("button") ?? cell.appendChild(document.createElement("button"));
    found.type = "button";
    found.onclick = () => choose(name);
    found.setAttribute("aria-pressed", String(name === current));
    set(found, name);
  }

  new EventSource("members").onmessage = (event) => {
    rows = JSON.parse(event.data);
    show();
    if (current === null && rows.length) choose((rows.find((row) => row.name.startsWith("worker")) ?? rows[0]).name);
  };
}

// The cells of a process; the first is its button.
function cells({ live, why, values, warnings, serious }) {
  const numbers = [format.count(values.operations), format.count(values.steps), format.count(values.samples), format.bytes(values.resident), format.seconds(values.lag)];
  const state = { text: live ? "live" : "silent", state: live ? "alive" : "gone", title: why };
  const found = warnings ? { text: String(warnings), state: serious ? "gone" : "suspect" } : { text: "none", state: "alive" };
  return [{ button: true }, state, ...numbers, found];
}
