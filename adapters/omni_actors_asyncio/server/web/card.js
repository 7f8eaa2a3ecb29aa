// One request, from its question to its end: text, sound and pictures as they come, its numbers, and its stop button.

import { ask, events, refusal, words } from "./sse.js";
import { Sound } from "./sound.js";
import { Wave } from "./wave.js";

const STOP_MS = 10_000; // longer than the server waits for its engines

// Of this page alone; http pages of other machines have no crypto.randomUUID.
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Card {
  // `wish`: {model, text, audio, image}.
  constructor(template, question, wish) {
    this.element = template.content.firstElementChild.cloneNode(true);
    this.question = question;
    this.wish = wish;
    this.asked = newId();
    this.id = `chatcmpl-${this.asked}`;
    this.controller = new AbortController();
    this.live = true;
    this.stopping = false;
    this.facts = new Map();
    this.sound = new Sound(() => this.sounds());
    this.wave = new Wave(this.part("wave"), this.sound);
    this.part("question").textContent = question;
    this.part("stop").addEventListener("click", () => this.stop());
    this.part("play").addEventListener("click", () => this.playOrPause());
    this.part("wave").addEventListener("click", (event) => this.seek(event));
  }

  part(name) {
    return this.element.querySelector(`.${name}`);
  }

  // ------------------------------------------------------------------ asking

  async run() {
    this.begun = performance.now();
    try {
      const { signal } = this.controller;
      const response = await ask("v1/chat/completions", { body: this.body(), signal, headers: { "x-request-id": this.asked } });
      if (response.ok) await this.read(response);
      else this.fail(await refusal(response));
    } catch (error) {
      if (!this.stopping) this.fail(broken(error));
    }
    this.end();
  }

  body() {
    const { model, audio, image } = this.wish;
    const modalities = ["text", "audio", "image"].filter((each) => this.wish[each]);
    const sound = audio ? { audio: { voice: "default", format: "pcm16" } } : {};
    const messages = [{ role: "user", content: this.question }];
    const more = audio || image ? { modalities, ...sound } : {};
    return { model, messages, stream: true, stream_options: { include_usage: true }, ...more };
  }

  async read(response) {
    for await (const data of events(response, (step) => this.step(step))) {
      if (data === "[DONE]") {
        this.whole = true;
        return;
      }
      this.take(JSON.parse(data));
    }
    if (!this.stopping) this.fail("The answer broke off: the server closed the connection.");
  }

  take(chunk) {
    if (chunk.error) return this.fail(words(chunk, "The server failed at this request."));
    this.id = chunk.id ?? this.id;
    if (chunk.usage) this.fact("tokens", "tokens", String(chunk.usage.completion_tokens), chunk.usage.completion_tokens);
    const choice = chunk.choices?.[0];
    if (choice?.delta?.content) this.say(choice.delta.content);
    if (choice?.delta?.audio) this.hear(choice.delta.audio);
    for (const part of choice?.delta?.images ?? []) this.see(part);
    if (choice?.finish_reason) this.reason = choice.finish_reason;
  }

  answers() {
    if (this.element.dataset.state === "asking") this.element.dataset.state = "answering";
    return this.elapsed();
  }

  say(text) {
    const now = this.answers();
    this.fact("first-text", "first text", `${now} ms`, now, true);
    this.part("answer").append(text);
  }

  hear({ data, sample_rate: rate, id }) {
    if (id) this.soundRate = rate;
    if (!data || !this.soundRate) return;
    const now = this.answers();
    this.part("sound").hidden = false;
    this.fact("first-audio", "first audio", `${now} ms`, now, true);
    this.sound.add(data, this.soundRate);
    this.lastSound = now;
    this.measureSound();
  }

  // A picture is shown if the server sent it along; the page loads nothing from elsewhere.
  see({ image_url: { url } = {}, seed }) {
    if (!url?.startsWith("data:image/")) return;
    const now = this.answers();
    this.fact("first-picture", "first picture", `${now} ms`, now, true);
    const pictures = this.part("pictures");
    const [link, image] = [document.createElement("a"), document.createElement("img")];
    image.src = link.href = url;
    image.alt = `A picture for: ${this.question}`;
    link.download = `${this.id}-${pictures.childElementCount}.${url.slice(11, url.indexOf(";"))}`;
    link.title = seed === undefined || seed === null ? "Save" : `Save (seed ${seed})`;
    link.append(image);
    pictures.append(link);
    pictures.hidden = false;
    this.element.dataset.pictures = pictures.childElementCount;
  }

  step({ stage, done, total }) {
    this.answers();
    this.fact("steps", `${stage}'s steps`, total ? `${done} of ${total}` : String(done), done);
  }

  measureSound() {
    const seconds = this.sound.samples / this.soundRate;
    const factor = this.lastSound / 1000 / seconds;
    this.element.dataset.scheduled = this.sound.scheduled;
    this.element.dataset.samples = this.sound.samples;
    this.element.dataset.rate = this.soundRate;
    this.fact("seconds", "audio", `${seconds.toFixed(2)} s`, seconds);
    if (seconds) this.fact("rtf", "real-time factor", factor.toFixed(2), factor);
    this.wave.refresh();
  }

  elapsed() {
    return Math.round(performance.now() - this.begun);
  }

  // ------------------------------------------------------------------ its end

  end() {
    this.live = false;
    const element = this.element;
    this.fact("total", "in all", `${this.elapsed()} ms`, this.elapsed());
    this.fact("id", "request", this.id, this.id);
    element.dataset.requestId = this.id;
    this.part("answer").setAttribute("aria-busy", "false");
    this.part("stop").hidden = true;
    if (this.sound.samples) this.offerFile();
    if (element.dataset.state !== "failed") {
      const stopped = this.stopping || this.reason === "abort";
      element.dataset.state = stopped ? "stopped" : "done";
      if (this.reason === "length") this.note("Cut off: it had as many tokens as it may have.");
      if (this.reason === "abort" && !this.stopping) this.note("Stopped from elsewhere.");
    }
  }

  fail(text) {
    this.element.dataset.state = "failed";
    this.part("error").textContent = text;
    this.sound.silence();
  }

  note(text) {
    this.part("status").textContent = text;
  }

  offerFile() {
    const link = this.part("save");
    link.href = this.sound.wav();
    link.download = `${this.id}.wav`;
    link.hidden = false;
    this.sounds();
  }

  // End every stage's work for it, and say what that ended. Without an answer the connection is closed instead,
  // which ends it as well.
  async stop() {
    if (!this.live || this.stopping) return;
    this.stopping = true;
    this.part("stop").disabled = true;
    this.sound.silence();
    this.note("Stopping…");
    try {
      const response = await ask("v1/omni/abort", { body: { request_id: this.id }, signal: AbortSignal.timeout(STOP_MS) });
      const report = response.ok ? await response.json() : null;
      this.note(report?.known ? told(report) : "Stopped: the connection was closed.");
    } catch {
      this.note("Stopped here; the server did not confirm it.");
    }
    this.controller.abort();
  }

  // ------------------------------------------------------------------ hearing it again

  sounds() {
    const button = this.part("play");
    const playing = this.sound.playing;
    button.textContent = playing ? "❚❚" : "▶";
    button.setAttribute("aria-label", playing ? (this.live ? "Silence" : "Pause") : "Play");
    button.disabled = this.live && !playing;
    this.element.dataset.playing = playing;
    this.element.dataset.heard = this.sound.heard;
    this.wave.refresh();
  }

  playOrPause() {
    if (this.sound.playing) return this.sound.silence();
    this.replay(this.sound.position < 1 ? this.sound.position : 0);
  }

  seek(event) {
    if (this.live) return;
    this.replay(this.wave.at(event.offsetX));
  }

  replay(from) {
    this.sound.replay(from).catch(() => this.note("This browser could not play the sound."));
  }

  // ------------------------------------------------------------------ numbers

  fact(name, label, text, value, once = false) {
    let pair = this.facts.get(name);
    if (pair && once) return;
    if (!pair) {
      const [term, detail, group] = ["dt", "dd", "div"].map((tag) => document.createElement(tag));
      term.textContent = label;
      group.className = `fact ${name}`;
      group.append(term, detail);
      this.part("facts").append(group);
      this.facts.set(name, (pair = { detail, group }));
    }
    pair.detail.textContent = text;
    this.element.dataset[name.replace(/-./g, (dash) => dash[1].toUpperCase())] = value;
  }

  remove() {
    this.sound.drop();
    this.element.remove();
  }
}

// Fetch breaks with a TypeError, whatever the network did.
function broken(error) {
  if (error instanceof TypeError) return "The connection to the server was lost in the middle of this answer.";
  return `This page could not read the answer: ${error.message}`;
}

// What an abort ended, in words.
function told({ ended, unconfirmed }) {
  const tokens = ended.flatMap((each) => Object.entries(each.tokens ?? {}));
  const made = tokens.map(([stage, count]) => `${stage} had made ${count} token${count === 1 ? "" : "s"}`).join(", ");
  const late = unconfirmed.length ? ` Not confirmed yet by ${unconfirmed.join(", ")}.` : "";
  return `Stopped in every stage${made ? `: ${made}` : ""}.${late}`;
}
