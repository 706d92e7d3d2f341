// Tables that keep their cells: only what differs is written, so that nothing flickers and selections stay.

// A cell is text, or {text, share, tone} for a meter, or {text, state} for a badge, or {button} for one that the caller puts there.
export function fill(body, rows, classes = []) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, at) => write(row.cells[at] ?? made(row, classes[at]), cell));
  });
}

function made(row, name) {
  const cell = row.insertCell();
  if (name) cell.className = name;
  return cell;
}

function write(cell, what) {
  if (what === null || typeof what !== "object") {
    set(cell, what ?? "–"); // also where it was a meter
  } else if ("button" in what) {
    return;
  } else if ("share" in what) {
    meter(cell, what);
  } else {
    const badge = cell.firstElementChild ?? cell.appendChild(document.createElement("span"));
    badge.className = "badge";
    badge.dataset.state = what.state;
    set(badge, what.text);
    cell.title = what.title ?? "";
  }
}

function meter(cell, { text, share, tone }) {
  if (!cell.firstElementChild) {
    cell.textContent = ""; // it may have been text
    const box = cell.appendChild(document.createElement("div"));
    box.className = "meter";
    box.append(document.createElement("i"), document.createElement("span"));
  }
  const [bar, label] = cell.firstElementChild.children;
  bar.style.setProperty("--share", Math.min(Math.max(share ?? 0, 0), 1).toFixed(3));
  if (tone) bar.style.setProperty("--tone", `var(--${tone})`);
  set(label, text);
}

export function set(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}
