// The connection to the process: reconnects automatically, reports silence, and pauses while the page is hidden.

const LATE = 2500; // milliseconds
const GONE = 6000;
const HIDDEN = 30000; // after which a hidden page disconnects

// Calls onFrame(frame) for every frame, and onStatus(status, seconds) with the status waiting, live, late or gone.
// Returns a function that switches to another feed.
export function follow(onFrame, onStatus, address) {
  let lastMessage = performance.now();
  let source = null;
  let opened = 0;

  function open() {
    opened = performance.now();
    source?.close();
    source = new EventSource(address);
    source.onmessage = (event) => {
      lastMessage = performance.now();
      onFrame(JSON.parse(event.data));
      onStatus("live", 0);
    };
  }

  let hidden = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(() => source.close(), HIDDEN);
    } else if (source.readyState === EventSource.CLOSED) {
      lastMessage = performance.now();
      onStatus("waiting", 0);
      open();
    }
  });

  setInterval(() => {
    if (document.hidden) return;
    const now = performance.now();
    const silent = now - lastMessage;
    if (silent > LATE) onStatus(silent > GONE || source.readyState !== EventSource.OPEN ? "gone" : "late", silent / 1000);
    // Reconnect if the connection hangs or the browser has closed it.
    if (silent > GONE && now - opened > GONE) open();
  }, 500);
  open();
  return (other) => {
    address = other;
    lastMessage = performance.now();
    onStatus("waiting", 0);
    open();
  };
}
