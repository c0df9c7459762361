// A part of the map of a long text, token by token. It shows the largest weights of each query; others are not stored.

const ZOOM_TOKENS = 48;

// The first query and the first key of the part that is shown: around the selected cell, or around the diagonal.
function zoomStart(map, tokens, keys) {
  const around = (token, size, length) => Math.max(0, Math.min(token - Math.floor((ZOOM_TOKENS - size) / 2), length - ZOOM_TOKENS));
  const token = state.token ?? 0, key = state.key ?? Math.floor(token / tokens.length * keys.length);
  return [around(token, map.querySize, tokens.length), around(key, map.keySize, keys.length)];
}

function zoomMap(map, tokens, keys) {
  const [start, keyStart] = zoomStart(map, tokens, keys);
  const numRows = Math.min(ZOOM_TOKENS, tokens.length), numColumns = Math.min(ZOOM_TOKENS, keys.length);
  const cells = new Uint8Array(numRows * numColumns);
  for (let row = 0; row < numRows; row++) {
    for (let index = (start + row) * NUM_TOP_KEYS; index < (start + row + 1) * NUM_TOP_KEYS; index++) {
      const column = map.topKeys[index] - keyStart;
      if (column >= 0 && column < numColumns) cells[row * numColumns + column] = Math.max(cells[row * numColumns + column], map.topWeights[index]);
    }
  }
  return { start, keyStart, numRows, numColumns, querySize: 1, keySize: 1, cells, cellMax: map.topWeightMax };
}

function drawZoom(container, map, tokens, keys) {
  const zoom = zoomMap(map, tokens, keys), colors = colorTable("sequential");
  const canvas = createElement("canvas", { class: "heatmap zoom", role: "img", "aria-label": "a part of the map, token by token" });
  const range = (first, count) => `${formatCount(first)}–${formatCount(first + count - 1)}`;
  const caption = createElement("p", { class: "muted" }, `Queries ${range(zoom.start, zoom.numRows)}, keys ${range(zoom.keyStart, zoom.numColumns)}: the ${NUM_TOP_KEYS} largest weights of each query. Click in the large map to show another part.`);
  container.replaceChildren(canvas, caption);
  drawHeatmap(canvas, zoom, tokens, keys, (index) => (dequantize(zoom.cells[index], zoom.cellMax) < state.threshold ? colors[0] : colors[zoom.cells[index]]), zoom.start, zoom.keyStart);
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAtPointer(canvas, event);
    if (!cell) return hideTooltip();
    const weight = cellWeight(zoom, ...cell), [i, j] = [zoom.start + cell[0], zoom.keyStart + cell[1]];
    placeTooltip(event, `${tokens[i]} (${i}) → ${keys[j]} (${j})`, [weight ? formatWeight(weight) : `not among the ${NUM_TOP_KEYS} largest weights`]);
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const cell = cellAtPointer(canvas, event);
    if (cell) setState({ token: zoom.start + cell[0], key: zoom.keyStart + cell[1] });
  });
}
