// Colours: one ramp for weights, which grows evenly in lightness, and one for differences; both for light and dark.

const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]; // Okabe and Ito: told apart with any colour vision
const RAMPS = {
  light: [[253, 253, 252], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
  dark: [[27, 31, 37], [22, 56, 92], [23, 104, 158], [86, 180, 233], [240, 249, 255]],
};
const SIGNED = {
  light: [[0, 90, 150], [120, 180, 220], [250, 250, 249], [244, 165, 110], [190, 75, 0]],
  dark: [[110, 195, 245], [30, 95, 140], [27, 31, 37], [150, 75, 25], [250, 150, 80]],
};

const printing = matchMedia("print");
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  if (printing.matches) return "light";
  return state.theme || (systemDark.matches ? "dark" : "light");
}

function between(stops, share) {
  const place = Math.min(0.99999, Math.max(0, share)) * (stops.length - 1);
  const at = Math.floor(place), rest = place - at;
  return stops[at].map((x, channel) => Math.round(x + (stops[at + 1][channel] - x) * rest));
}

const tables = new Map();
function table(kind) { // 256 colours
  const key = kind + theme();
  if (!tables.has(key)) {
    const stops = (kind === "signed" ? SIGNED : RAMPS)[theme()];
    tables.set(key, Array.from({ length: 256 }, (_, at) => between(stops, at / 255)));
  }
  return tables.get(key);
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const readable = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1b1f24" : "#ffffff");
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas whose pixels are the screen's: returns its context in CSS pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Bytes as a picture of so many cells along each side.
function picture(canvas, side, colourAt) {
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d"), image = context.createImageData(side, side);
  for (let at = 0; at < side * side; at++) {
    const [r, g, b] = colourAt(at);
    image.data.set([r, g, b, 255], 4 * at);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
