// The pipeline's state, for as long as the page is open. Says when the server is out of reach, and comes back to it.

import { ask, events } from "./sse.js";

const SILENT_MS = 25_000; // the server sends a sign of life every 10 s
const FIRST_MS = 500;
const LONGEST_MS = 8_000;

// `onState(state)` for each state, `onTrouble("unreachable" | "locked" | "refused")` in between.
// Returns `retry`: look again now, for instance with another key.
export function watch(onState, onTrouble) {
  let controller = new AbortController();
  let wake = () => undefined;

  async function look() {
    controller = new AbortController();
    let watchdog = setTimeout(() => controller.abort(), SILENT_MS);
    let heard = false;
    let why = "unreachable";
    try {
      const response = await ask("v1/omni/state", { signal: controller.signal });
      if (!response.ok) {
        why = response.status === 401 ? "locked" : "refused";
        return false;
      }
      for await (const data of events(response)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => controller.abort(), SILENT_MS);
        heard = true;
        onState(JSON.parse(data));
      }
    } catch {
      // Out of reach, or the connection broke: said below, and tried again.
    } finally {
      clearTimeout(watchdog);
      onTrouble(why);
    }
    return heard;
  }

  async function forever() {
    for (let delay = FIRST_MS; ; delay = Math.min(2 * delay, LONGEST_MS)) {
      if (await look()) delay = FIRST_MS;
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, delay);
      });
    }
  }

  forever();
  return () => {
    controller.abort();
    wake();
  };
}
