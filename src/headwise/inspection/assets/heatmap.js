// One head's map, with tokens along its sides where there is room for them.

function drawHeatmap(canvas, map, tokens, { colourAt, most }) {
  const width = Math.min(620, canvas.parentElement.clientWidth || 560);
  const font = (size) => `${size}px system-ui, sans-serif`;
  const context = canvas.getContext("2d");
  context.font = font(12);
  const widest = map.size > 1 ? 0 : tokens.reduce((most, token) => Math.max(most, context.measureText(token).width), 0);
  const labels = Math.min(widest + 10, 110, width * 0.24), legible = map.size === 1 && (width - labels) / map.side >= 9;
  const margin = legible ? labels : 36;
  const cell = Math.min(40, (width - margin - 2) / map.side), size = cell * map.side;
  sized(canvas, margin + size + 2, margin + size + 2);
  const image = picture(document.createElement("canvas"), map.side, colourAt);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, margin, margin, size, size);
  context.strokeStyle = variable("--line");
  context.strokeRect(margin - 0.5, margin - 0.5, size + 1, size + 1);
  context.fillStyle = variable("--faint");
  context.font = font(legible ? Math.min(12, cell * 0.95) : 10);
  context.textBaseline = "middle";
  const step = legible ? 1 : Math.max(1, Math.ceil(map.side / 8));
  for (let at = 0; at < map.side; at += step) {
    const told = legible ? clipped(context, tokens[at * map.size], margin - 8) : `${at * map.size}`;
    const middle = margin + (at + 0.5) * cell;
    context.textAlign = "right";
    context.fillText(told, margin - 5, middle);
    context.save();
    context.translate(middle, margin - 5);
    if (legible) { context.rotate(-Math.PI / 2); context.textAlign = "left"; } else context.textAlign = "center";
    context.fillText(told, 0, legible ? 0 : -4);
    context.restore();
  }
  if (state.token !== null) {
    context.strokeStyle = variable("--accent");
    context.lineWidth = 2;
    context.strokeRect(margin, margin + Math.floor(state.token / map.size) * cell, size, Math.max(2, cell));
  }
  canvas.place = { margin, cell, side: map.side };
  canvas.most = most;
}

function clipped(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}

// The cell under the pointer, [query group, key group], or null.
function under(canvas, event) {
  const box = canvas.getBoundingClientRect(), { margin, cell, side } = canvas.place;
  const at = (x) => Math.floor((x - margin) / cell);
  const [i, j] = [at(event.clientY - box.top), at(event.clientX - box.left)];
  return i >= 0 && j >= 0 && i < side && j < side ? [i, j] : null;
}

function scaleOf(most, kind) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  table(kind).forEach((colour, at) => { context.fillStyle = css(colour); context.fillRect(at, 0, 1, 1); });
  const told = (text) => element("span", {}, text);
  return element("div", { class: "scale" }, told(kind === "signed" ? weight(-most) : "0"), canvas, told(weight(most)), told("colours grow with the square root"));
}

const groupName = (tokens, group, size) => {
  const start = group * size, end = Math.min(start + size, tokens.length);
  return size === 1 ? tokens[start] : `“${tokens[start]} … ${tokens[end - 1]}” (${start}–${end - 1})`;
};
