// The map of one head, with token labels if there is enough space.

function drawHeatmap(canvas, map, tokens, colorAt) {
  const { numGroups, groupSize } = map;
  const width = Math.min(620, canvas.parentElement.clientWidth || 560);
  const font = (size) => `${size}px system-ui, sans-serif`;
  const context = canvas.getContext("2d");
  context.font = font(12);
  const labelWidth = groupSize > 1 ? 0 : tokens.reduce((widest, token) => Math.max(widest, context.measureText(token).width), 0);
  const labelMargin = Math.min(labelWidth + 10, 110, width * 0.24);
  const hasLabels = groupSize === 1 && (width - labelMargin) / numGroups >= 9;
  const margin = hasLabels ? labelMargin : 36;
  const cell = Math.min(40, (width - margin - 2) / numGroups), size = cell * numGroups;
  resizeCanvas(canvas, margin + size + 2, margin + size + 2);
  const image = drawPixels(document.createElement("canvas"), numGroups, colorAt);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, margin, margin, size, size);
  context.strokeStyle = cssVariable("--border");
  context.strokeRect(margin - 0.5, margin - 0.5, size + 1, size + 1);
  context.fillStyle = cssVariable("--muted");
  context.font = font(hasLabels ? Math.min(12, cell * 0.95) : 10);
  context.textBaseline = "middle";
  const step = hasLabels ? 1 : Math.max(1, Math.ceil(numGroups / 8));
  for (let group = 0; group < numGroups; group += step) {
    const label = hasLabels ? truncateText(context, tokens[group], margin - 8) : `${group * groupSize}`;
    const center = margin + (group + 0.5) * cell;
    context.textAlign = "right";
    context.fillText(label, margin - 5, center);
    context.save();
    context.translate(center, margin - 5);
    if (hasLabels) { context.rotate(-Math.PI / 2); context.textAlign = "left"; } else context.textAlign = "center";
    context.fillText(label, 0, hasLabels ? 0 : -4);
    context.restore();
  }
  if (state.token !== null) {
    context.strokeStyle = cssVariable("--accent");
    context.lineWidth = 2;
    context.strokeRect(margin, margin + Math.floor(state.token / groupSize) * cell, size, Math.max(2, cell));
  }
  canvas.geometry = { margin, cell, numGroups };
}

function truncateText(context, text, maxWidth) {
  if (context.measureText(text).width <= maxWidth) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > maxWidth) end--;
  return `${text.slice(0, end)}…`;
}

// The cell at the pointer, [query group, key group], or null.
function cellAtPointer(canvas, event) {
  const box = canvas.getBoundingClientRect(), { margin, cell, numGroups } = canvas.geometry;
  const toGroup = (x) => Math.floor((x - margin) / cell);
  const [i, j] = [toGroup(event.clientY - box.top), toGroup(event.clientX - box.left)];
  return i >= 0 && j >= 0 && i < numGroups && j < numGroups ? [i, j] : null;
}

function createColorbar(limit, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  colorTable(scale).forEach((color, index) => { context.fillStyle = toCss(color); context.fillRect(index, 0, 1, 1); });
  const label = (text) => createElement("span", {}, text);
  return createElement("div", { class: "scale" }, label(scale === "diverging" ? formatWeight(-limit) : "0"), canvas, label(formatWeight(limit)), label("square root scale"));
}

const groupLabel = (tokens, group, groupSize) => {
  const start = group * groupSize, end = Math.min(start + groupSize, tokens.length);
  return groupSize === 1 ? tokens[start] : `“${tokens[start]} … ${tokens[end - 1]}” (${start}–${end - 1})`;
};
