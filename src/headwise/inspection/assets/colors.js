// Color scales for weights (sequential) and differences (diverging), for the light and the dark theme.

const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]; // Okabe and Ito: color-blind safe
const SEQUENTIAL = {
  light: [[253, 253, 252], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
  dark: [[27, 31, 37], [22, 56, 92], [23, 104, 158], [86, 180, 233], [240, 249, 255]],
};
const DIVERGING = {
  light: [[0, 90, 150], [120, 180, 220], [250, 250, 249], [244, 165, 110], [190, 75, 0]],
  dark: [[110, 195, 245], [30, 95, 140], [27, 31, 37], [150, 75, 25], [250, 150, 80]],
};

const printMedia = matchMedia("print");
const darkMedia = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  if (printMedia.matches) return "light";
  return state.theme || (darkMedia.matches ? "dark" : "light");
}

function interpolate(stops, fraction) {
  const position = Math.min(0.99999, Math.max(0, fraction)) * (stops.length - 1);
  const index = Math.floor(position), rest = position - index;
  return stops[index].map((x, channel) => Math.round(x + (stops[index + 1][channel] - x) * rest));
}

const colorTables = new Map();
// 256 colors of the "sequential" or "diverging" scale.
function colorTable(scale) {
  const key = scale + theme();
  if (!colorTables.has(key)) {
    const stops = (scale === "diverging" ? DIVERGING : SEQUENTIAL)[theme()];
    colorTables.set(key, Array.from({ length: 256 }, (_, index) => interpolate(stops, index / 255)));
  }
  return colorTables.get(key);
}

// The color of x in [−1, 1] on the diverging scale, which grows with the square root.
const divergingColor = (colors, x) => colors[Math.round(127.5 + 127.5 * Math.sign(x) * Math.sqrt(Math.abs(x)))];

const toCss = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const contrastingText = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1b1f24" : "#ffffff");
const cssVariable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Resize a canvas to device pixels and return its context, scaled to CSS pixels.
function resizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Draw one pixel for each cell of a map.
function drawPixels(canvas, width, height, colorAt) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), { data } = image;
  for (let index = 0, position = 0; index < width * height; index++, position += 4) {
    const color = colorAt(index);
    data[position] = color[0];
    data[position + 1] = color[1];
    data[position + 2] = color[2];
    data[position + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
