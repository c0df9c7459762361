// The map of one head, with token labels if there is enough space.

const MAX_CELL = 40, MAX_MAP_HEIGHT = 900, MIN_LABELED_CELL = 9;

// Draw a map: { numRows, numColumns, querySize, keySize }. The first token of its rows is `start`, that of its columns
// `keyStart`, if it is a part of a larger map.
function drawHeatmap(canvas, map, tokens, keys, colorAt, start = 0, keyStart = 0) {
  const { numRows, numColumns, querySize, keySize } = map;
  const width = Math.min(620, canvas.parentElement.clientWidth || 560);
  const font = (size) => `${size}px system-ui, sans-serif`;
  const context = canvas.getContext("2d");
  context.font = font(12);
  const labelMargin = (texts) => Math.min(texts.reduce((widest, text) => Math.max(widest, context.measureText(text).width), 0) + 10, 110, width * 0.24);
  const rowMargin = querySize === 1 ? labelMargin(tokens.slice(start, start + numRows)) : 36;
  let cellWidth = Math.min(MAX_CELL, (width - rowMargin - 2) / numColumns), cellHeight = Math.min(MAX_CELL, MAX_MAP_HEIGHT / numRows);
  if (Math.max(cellWidth, cellHeight) < 3 * Math.min(cellWidth, cellHeight) || numRows === numColumns) cellWidth = cellHeight = Math.min(cellWidth, cellHeight);
  const hasRowLabels = querySize === 1 && cellHeight >= MIN_LABELED_CELL, hasColumnLabels = keySize === 1 && cellWidth >= MIN_LABELED_CELL;
  const left = hasRowLabels ? rowMargin : 36, top = hasColumnLabels ? labelMargin(keys.slice(keyStart, keyStart + numColumns)) : 36;
  cellWidth = Math.min(cellWidth, (width - left - 2) / numColumns);
  const bodyWidth = cellWidth * numColumns, bodyHeight = cellHeight * numRows;
  resizeCanvas(canvas, left + bodyWidth + 2, top + bodyHeight + 2);
  const image = drawPixels(document.createElement("canvas"), numColumns, numRows, colorAt);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, left, top, bodyWidth, bodyHeight);
  context.strokeStyle = cssVariable("--border");
  context.strokeRect(left - 0.5, top - 0.5, bodyWidth + 1, bodyHeight + 1);
  context.fillStyle = cssVariable("--muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.font = font(hasRowLabels ? Math.min(12, cellHeight * 0.95) : 10);
  for (let row = 0; row < numRows; row += hasRowLabels ? 1 : Math.max(1, Math.ceil(numRows / 8))) {
    const label = hasRowLabels ? truncateText(context, tokens[start + row], left - 8) : `${start + row * querySize}`;
    context.fillText(label, left - 5, top + (row + 0.5) * cellHeight);
  }
  context.font = font(hasColumnLabels ? Math.min(12, cellWidth * 0.95) : 10);
  for (let column = 0; column < numColumns; column += hasColumnLabels ? 1 : Math.max(1, Math.ceil(numColumns / 8))) {
    context.save();
    context.translate(left + (column + 0.5) * cellWidth, top - 5);
    if (hasColumnLabels) context.rotate(-Math.PI / 2);
    context.textAlign = hasColumnLabels ? "left" : "center";
    const label = hasColumnLabels ? truncateText(context, keys[keyStart + column], top - 8) : `${keyStart + column * keySize}`;
    context.fillText(label, 0, hasColumnLabels ? 0 : -4);
    context.restore();
  }
  const selectedRow = state.token === null ? -1 : Math.floor((state.token - start) / querySize);
  if (selectedRow >= 0 && selectedRow < numRows) {
    context.strokeStyle = cssVariable("--accent");
    context.lineWidth = 2;
    context.strokeRect(left, top + selectedRow * cellHeight, bodyWidth, Math.max(2, cellHeight));
  }
  canvas.geometry = { left, top, cellWidth, cellHeight, numRows, numColumns };
}

function truncateText(context, text, maxWidth) {
  if (context.measureText(text).width <= maxWidth) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > maxWidth) end--;
  return `${text.slice(0, end)}…`;
}

// The cell at the pointer, [row, column], or null.
function cellAtPointer(canvas, event) {
  const box = canvas.getBoundingClientRect(), { left, top, cellWidth, cellHeight, numRows, numColumns } = canvas.geometry;
  const i = Math.floor((event.clientY - box.top - top) / cellHeight), j = Math.floor((event.clientX - box.left - left) / cellWidth);
  return i >= 0 && j >= 0 && i < numRows && j < numColumns ? [i, j] : null;
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
