// Sound: pieces of pcm16 played without a gap while more of them are being made, and kept as one WAV.

const LEAD_S = 0.05; // between a piece that comes in time to start at once, and its start
const PEAKS_PER_S = 40;
const contexts = new Map(); // one per sample rate: the browser resamples a context better than a buffer
const loudness = { volume: 0.9, muted: false };
let speaking = null; // one answer is heard at a time: the one that began last

// Browsers let sound begin with a click or a key only: called in one. The rate is a guess, mostly a right one.
// Where there is no sound, the answer is read all the same, and kept as a file.
export function unlock(rate = 24_000) {
  try {
    context(rate).audio.resume().catch(() => undefined);
    return true;
  } catch {
    return false;
  }
}

function context(rate) {
  if (!contexts.has(rate)) {
    const audio = new AudioContext({ sampleRate: rate });
    const gain = audio.createGain();
    gain.connect(audio.destination);
    contexts.set(rate, { audio, gain });
    setLoudness(loudness);
  }
  return contexts.get(rate);
}

export function setLoudness(change) {
  Object.assign(loudness, change);
  for (const { audio, gain } of contexts.values()) {
    gain.gain.setTargetAtTime(loudness.muted ? 0 : loudness.volume ** 2, audio.currentTime, 0.01);
  }
}

export class Sound {
  // `onChange` is called when it begins or ends to be heard.
  constructor(onChange) {
    this.onChange = onChange;
    this.pieces = [];
    this.peaks = [];
    this.samples = 0; // of the answer
    this.scheduled = 0; // of those, given to the audio device
    this.rate = 0;
    this.live = new Map(); // sources that are to be heard yet: when, and from which sample on
    this.until = 0;
    this.silent = false;
    this.heard = 0;
    this.player = null;
    this.url = null;
    this.odd = { peak: 0, left: 0 };
  }

  // One piece, as it came over the wire.
  add(base64, rate) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const piece = new Int16Array(bytes.buffer, 0, bytes.length >> 1);
    if (!this.rate) this.begin(rate);
    this.pieces.push(piece);
    this.measure(piece);
    if (!this.silent && piece.length) this.schedule(piece);
    this.samples += piece.length;
  }

  begin(rate) {
    this.rate = rate;
    if (speaking && speaking !== this) speaking.silence();
    speaking = this;
    this.silent = !unlock(rate);
  }

  measure(piece) {
    const every = Math.max(1, Math.round(this.rate / PEAKS_PER_S));
    const odd = this.odd;
    for (const sample of piece) {
      odd.peak = Math.max(odd.peak, Math.abs(sample) / 32768);
      if (++odd.left >= every) {
        this.peaks.push(odd.peak);
        odd.peak = odd.left = 0;
      }
    }
  }

  schedule(piece) {
    const { audio, gain } = context(this.rate);
    const buffer = audio.createBuffer(1, piece.length, this.rate);
    buffer.copyToChannel(Float32Array.from(piece, (sample) => sample / 32768), 0);
    const source = audio.createBufferSource();
    source.buffer = buffer;
    source.connect(gain);
    const at = Math.max(this.until, audio.currentTime + LEAD_S);
    source.start(at);
    this.until = at + buffer.duration;
    this.scheduled += piece.length;
    const from = this.samples;
    this.live.set(source, { at, from });
    source.onended = () => {
      this.heard = Math.max(this.heard, from + piece.length);
      this.live.delete(source);
      if (!this.live.size) this.onChange();
    };
    this.onChange();
  }

  get playing() {
    return this.live.size > 0 || (this.player !== null && !this.player.paused);
  }

  // Which part of it has been heard, from 0 to 1.
  get position() {
    if (this.player) return this.player.duration ? this.player.currentTime / this.player.duration : 0;
    if (!this.samples) return 0;
    let heard = this.heard;
    const now = this.rate ? context(this.rate).audio.currentTime : 0;
    for (const { at, from } of this.live.values()) {
      if (at <= now) heard = Math.max(heard, from + (now - at) * this.rate);
    }
    return Math.min(1, heard / this.samples);
  }

  // Not another sample of it is heard; what comes is kept.
  silence() {
    this.silent = true;
    for (const source of this.live.keys()) {
      source.onended = null;
      source.stop();
    }
    this.live.clear();
    this.player?.pause();
    this.onChange();
  }

  // The file, once there is no more to come.
  wav() {
    const parts = [wavHeader(this.rate, 2 * this.samples), ...this.pieces];
    this.url ??= URL.createObjectURL(new Blob(parts, { type: "audio/wav" }));
    return this.url;
  }

  // Hear it (again), from a place between 0 and 1.
  replay(from) {
    if (speaking && speaking !== this) speaking.silence();
    speaking = this;
    this.silence();
    if (!this.player) {
      this.player = new Audio(this.wav());
      for (const event of ["play", "pause", "ended"]) this.player.addEventListener(event, this.onChange);
    }
    this.player.volume = loudness.muted ? 0 : loudness.volume ** 2;
    this.player.currentTime = from * (this.samples / this.rate);
    return this.player.play();
  }

  drop() {
    this.silence();
    if (this.url) URL.revokeObjectURL(this.url);
    if (speaking === this) speaking = null;
  }
}

function wavHeader(rate, size) {
  const view = new DataView(new ArrayBuffer(44));
  const text = (at, word) => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, size, true);
  return view.buffer;
}
