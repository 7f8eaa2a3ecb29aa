// The page: the question's form, the answers' cards, and the strip of stages above them.

import { Card } from "./card.js";
import { watch } from "./feed.js";
import { setLoudness, unlock } from "./sound.js";
import { useKey } from "./sse.js";
import { Strip } from "./stages.js";

const MAX_CARDS = 50;
const EXAMPLES = {
  "tiny-omni": [
    "What is two plus three?",
    "What is nine minus four, one plus one, and six minus two?",
  ],
};
const TROUBLE = {
  unreachable: "server unreachable; trying again",
  locked: "this server wants an API key",
  refused: "the server shows no state",
};

const $ = (id) => document.getElementById(id);
const strip = new Strip($("strip"), $("stage"));
const cards = []; // the newest first
let known = null; // the last state

// ---------------------------------------------------------------------- the state

function show(state) {
  known = state;
  $("pipeline").textContent = state.pipeline;
  $("description").textContent = state.description;
  document.title = `${state.pipeline} · omni_actors`;
  strip.show(state.stages);
  badge(state.ready ? "ready" : "busy", state.ready ? "ready" : "not ready");
  put("trouble", state.ready ? "" : state.reason);
  put("in-flight", String(state.in_flight));
  put("in-flight-word", state.in_flight === 1 ? "request in flight" : "requests in flight");
  document.body.dataset.inFlight = state.in_flight;
  offer(EXAMPLES[state.pipeline] ?? []);
}

function trouble(what) {
  strip.lose();
  badge(what === "locked" ? "busy" : "down", what === "locked" ? "locked" : "offline");
  put("trouble", TROUBLE[what]);
  document.body.dataset.inFlight = "unknown";
  if (what === "locked") $("key-box").open = true;
}

function badge(state, word) {
  $("readiness").dataset.state = state;
  put("readiness", word);
}

function put(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text; // so that screen readers hear of changes only
}

function offer(examples) {
  const group = $("examples");
  if (!group.hidden || !examples.length) return;
  for (const example of examples) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "chip";
    button.textContent = example;
    button.addEventListener("click", () => submit(example));
    group.append(button);
  }
  group.hidden = false;
}

// ---------------------------------------------------------------------- asking

function submit(question) {
  if (!question.trim()) return $("question").focus();
  const makes = (output) => known.stages.some((stage) => stage.output === output);
  const [text, audio, image] = known === null ? [true, true, false] : ["text", "audio", "image"].map(makes);
  if (audio) unlock();
  const card = new Card($("card"), question.trim(), { model: known?.models?.[0], text, audio, image });
  cards.unshift(card);
  $("cards").prepend(card.element);
  card.run();
  tidy();
}

// The oldest that are over make room.
function tidy() {
  for (let i = cards.length - 1; i > 0 && cards.length > MAX_CARDS; i--) {
    if (!cards[i].live) cards.splice(i, 1)[0].remove();
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value;
  $("question").value = "";
  submit(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") cards.find((card) => card.live && !card.stopping)?.stop();
});

// ---------------------------------------------------------------------- settings

$("volume").addEventListener("input", () => setLoudness({ volume: Number($("volume").value) }));
$("mute").addEventListener("change", () => setLoudness({ muted: $("mute").checked }));

$("key").value = sessionStorage.getItem("omni-key") ?? "";
useKey($("key").value);
const retry = watch(show, trouble);
$("key").addEventListener("change", () => {
  sessionStorage.setItem("omni-key", $("key").value);
  useKey($("key").value);
  retry();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && document.body.dataset.inFlight === "unknown") retry();
});
