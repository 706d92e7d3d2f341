// Tables with in-place updates: only changed cells are written, which avoids flicker and keeps selections.

// A cell is text, {text, share, tone} for a meter, {text, state} for a badge, or {button} for a button of the caller.
export function fill(body, rows, classes = []) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, at) => write(row.cells[at] ?? insertCell(row, classes[at]), cell));
  });
}

function insertCell(row, name) {
  const cell = row.insertCell();
  if (name) cell.className = name;
  return cell;
}

function write(cell, content) {
  if (content === null || typeof content !== "object") {
    set(cell, content ?? "–"); // also replaces a meter
  } else if ("button" in content) {
    return;
  } else if ("share" in content) {
    meter(cell, content);
  } else {
    const badge = cell.firstElementChild ?? cell.appendChild(document.createElement("span"));
    badge.className = "badge";
    badge.dataset.state = content.state;
    set(badge, content.text);
    cell.title = content.title ?? "";
  }
}

function meter(cell, { text, share, tone }) {
  if (!cell.firstElementChild) {
    cell.textContent = ""; // replaces text
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
