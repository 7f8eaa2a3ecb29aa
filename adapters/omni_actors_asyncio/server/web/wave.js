// The waveform: what has come so far, and how much of it has been heard.

const BAR = 3;
const GAP = 2;
const QUIET = 0.1; // what is not louder than this is drawn small
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Wave {
  constructor(canvas, sound) {
    this.canvas = canvas;
    this.sound = sound;
    this.moving = false;
    this.draw = this.draw.bind(this);
    new ResizeObserver(() => this.refresh()).observe(canvas);
  }

  // Draw once, and go on for as long as it is heard.
  refresh() {
    if (!this.moving) this.draw();
  }

  // Which part of the sound is drawn at this place, from 0 to 1.
  at(x) {
    const bars = Math.min(this.sound.peaks.length, room(this.canvas.clientWidth)) || 1;
    return Math.min(0.999, x / (BAR + GAP) / bars);
  }

  draw() {
    const { canvas, sound } = this;
    const style = getComputedStyle(canvas);
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const places = room(width);
    const bars = fitted(sound.peaks, places);
    const heard = sound.position * bars.length;
    const top = Math.max(QUIET, ...bars);
    for (let i = 0; i < places; i++) {
      const tall = i < bars.length ? Math.max(BAR, (bars[i] / top) ** 0.7 * height) : BAR;
      pen.fillStyle = style.getPropertyValue(i >= bars.length ? "--line" : i < heard ? "--accent" : "--wave");
      pen.beginPath();
      pen.roundRect(i * (BAR + GAP), (height - tall) / 2, BAR, tall, BAR / 2);
      pen.fill();
    }
    this.moving = sound.playing;
    if (this.moving) calm.matches ? setTimeout(this.draw, 500) : requestAnimationFrame(this.draw);
  }
}

function room(width) {
  return Math.max(1, Math.floor(width / (BAR + GAP)));
}

// At most so many bars; of several peaks in one bar the highest.
function fitted(peaks, places) {
  if (peaks.length <= places) return peaks;
  const bars = new Array(places).fill(0);
  peaks.forEach((peak, i) => {
    const bar = Math.floor((i * places) / peaks.length);
    bars[bar] = Math.max(bars[bar], peak);
  });
  return bars;
}
