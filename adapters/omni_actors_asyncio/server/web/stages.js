// The strip of stages: a box each, in the order of the graph, kept up to date in place.

const WORDS = {
  ready: "ready",
  starting: "starting",
  restarting: "restarting",
  down: "down",
  stopped: "stopped",
  unknown: "unknown",
};
const CELLS = 8;

// How far a stage is from the prompt: its column.
function depths(stages) {
  const found = {};
  const depth = (name, seen) => {
    const inputs = stages.find((stage) => stage.stage === name)?.inputs ?? [];
    if (seen.includes(name)) return 0;
    return Math.max(0, ...inputs.map((input) => 1 + depth(input.stage, [...seen, name])));
  };
  for (const stage of stages) found[stage.stage] = depth(stage.stage, []);
  return found;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

export class Strip {
  constructor(list, template) {
    this.list = list;
    this.template = template;
    this.boxes = new Map();
    this.shape = "";
  }

  show(stages) {
    const shape = JSON.stringify(stages.map((stage) => [stage.stage, stage.engine, stage.output, stage.inputs]));
    if (shape !== this.shape) this.build(stages, shape);
    for (const stage of stages) this.update(this.boxes.get(stage.stage), stage);
  }

  // Nothing is known of them any more; what was known stays visible, and says that it is old.
  lose() {
    for (const box of this.boxes.values()) {
      box.dataset.state = "unknown";
      put(box.querySelector(".word"), WORDS.unknown);
    }
  }

  build(stages, shape) {
    this.shape = shape;
    this.boxes.clear();
    const depth = depths(stages);
    const columns = [];
    for (const stage of stages) {
      const box = this.template.content.firstElementChild.cloneNode(true);
      this.boxes.set(stage.stage, box);
      this.dress(box, stage);
      (columns[depth[stage.stage]] ??= []).push(box);
    }
    this.list.replaceChildren(...columns.filter(Boolean).map(column));
  }

  dress(box, stage) {
    box.dataset.stage = stage.stage;
    put(box.querySelector(".name"), stage.stage);
    const from = stage.inputs.map((each) => each.stage + (each.mode === "whole" ? "" : `, in ${each.mode}`));
    const makes = stage.output ? ` → ${stage.output}` : "";
    put(box.querySelector(".engine"), stage.engine + makes);
    box.title = from.length ? `takes: ${from.join("; ")}` : "takes the prompt";
    const cells = box.querySelector(".cells");
    for (let i = 0; i < CELLS; i++) cells.append(document.createElement("i"));
  }

  update(box, stage) {
    const { state, running = 0, waiting = 0, ready = 0, replicas = 0, restarts = 0 } = stage;
    box.dataset.state = state in WORDS ? state : "unknown";
    box.dataset.running = running;
    box.dataset.waiting = waiting;
    put(box.querySelector(".word"), WORDS[state] ?? String(state));
    put(box.querySelector(".running"), String(running));
    put(box.querySelector(".waiting"), String(waiting));
    const again = restarts ? `, ${plural(restarts, "restart")}` : "";
    put(box.querySelector(".replicas"), `${ready} of ${plural(replicas, "replica")}${again}`);
    put(box.querySelector(".reason"), stage.reason ?? "");
    [...box.querySelector(".cells").children].forEach((cell, i) => {
      cell.className = i < running ? "on" : i < running + waiting ? "next" : "";
    });
  }
}

function column(boxes) {
  const item = document.createElement("li");
  const list = document.createElement("ul");
  item.className = "column";
  list.append(...boxes);
  item.append(list);
  return item;
}
