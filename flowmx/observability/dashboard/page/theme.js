// The theme: light, dark or the system's; stored in the browser.

const ORDER = ["auto", "light", "dark"];
const TITLES = { auto: ["◐", "Auto"], light: ["☀", "Light"], dark: ["☾", "Dark"] };
const KEY = "flowmx-theme";

function storedTheme() {
  try {
    return ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto";
  } catch {
    return "auto"; // storage is disabled
  }
}

// Makes a button cycle through the themes; calls onChange() when the colours change.
export function install(button, onChange) {
  let theme = storedTheme();
  const show = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    [...button.children].forEach((part, index) => (part.textContent = TITLES[theme][index]));
    button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "system" : theme}`);
    onChange();
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // the theme applies to this page only
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

let colours = {};

// A colour by the name of its variable.
export function colour(name) {
  return (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
}

export function forgetColors() {
  colours = {};
}

// Colors of operations by kind; keep in sync with the legend in index.html.
const KINDS = [
  [/kvstore|push|pull|barrier/i, "c6"],
  [/backward|grad/i, "c1"],
  [/update|sgd|adam|momentum|lamb|rmsprop/i, "c3"],
  [/copy|load|store|assign|array|batch_of|record|cast|host/i, "c2"],
];

// The colour of an operation.
export function toneOf(actor, name) {
  return (KINDS.find(([kind]) => kind.test(name)) ?? KINDS.slice(0, 1).find(([kind]) => kind.test(actor)) ?? [null, "c0"])[1];
}
