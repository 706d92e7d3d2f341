// The connection to the process: it comes back by itself, says when nothing is heard, and rests while nobody looks.

const LATE = 2500; // milliseconds
const GONE = 6000;
const HIDDEN = 30000; // after which a page that nobody sees asks for nothing more

// Calls told(frame) for each frame, and stands(how, seconds) as the connection is: waiting, live, late or gone.
// Returns a function that follows another feed in place of this one.
export function follow(told, stands, address) {
  let heard = performance.now();
  let source = null;
  let opened = 0;

  function open() {
    opened = performance.now();
    source?.close();
    source = new EventSource(address);
    source.onmessage = (event) => {
      heard = performance.now();
      told(JSON.parse(event.data));
      stands("live", 0);
    };
  }

  let hidden = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(() => source.close(), HIDDEN);
    } else if (source.readyState === EventSource.CLOSED) {
      heard = performance.now();
      stands("waiting", 0);
      open();
    }
  });

  setInterval(() => {
    if (document.hidden) return;
    const now = performance.now();
    const silent = now - heard;
    if (silent > LATE) stands(silent > GONE || source.readyState !== EventSource.OPEN ? "gone" : "late", silent / 1000);
    // A connection that hangs, or that the browser has given up, is made anew.
    if (silent > GONE && now - opened > GONE) open();
  }, 500);
  open();
  return (other) => {
    address = other;
    heard = performance.now();
    stands("waiting", 0);
    open();
  };
}
