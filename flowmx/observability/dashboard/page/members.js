// The processes of a job: one row per process, with a button that shows the process on the rest of the page.

import * as format from "./format.js";
import { fill, set } from "./table.js";

const CLASSES = [null, null, "number", "number", "number", "number", "number", null];

// Renders the received rows, and calls onSelect(name) for the selected process, at first the first one.
export function members(table, note, onSelect) {
  let rows = [];
  let current = null;

  function select(name) {
    current = name;
    show();
    onSelect(name);
  }

  function show() {
    fill(table.tBodies[0], rows.map(cells), CLASSES);
    rows.forEach(({ name }, index) => button(table.tBodies[0].rows[index].cells[0], name));
    const live = rows.filter((row) => row.live).length;
    set(note, rows.length ? `${live} of ${rows.length} processes respond` : "No process has announced a dashboard yet.");
  }

  function button(cell, name) {
    const element = cell.querySelector("button") ?? cell.appendChild(document.createElement("button"));
    element.type = "button";
    element.onclick = () => select(name);
    element.setAttribute("aria-pressed", String(name === current));
    set(element, name);
  }

  new EventSource("members").onmessage = (event) => {
    rows = JSON.parse(event.data);
    show();
    if (current === null && rows.length) select((rows.find((row) => row.name.startsWith("worker")) ?? rows[0]).name);
  };
}

// Returns the cells of a process; the first holds its button.
function cells({ live, why, values, warnings, serious }) {
  const numbers = [format.count(values.operations), format.count(values.steps), format.count(values.samples), format.bytes(values.resident), format.seconds(values.lag)];
  const state = { text: live ? "live" : "silent", state: live ? "alive" : "gone", title: why };
  const badge = warnings ? { text: String(warnings), state: serious ? "gone" : "suspect" } : { text: "none", state: "alive" };
  return [{ button: true }, state, ...numbers, badge];
}
