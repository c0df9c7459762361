// Shares of attention by distance, in logarithmic bins before and after the query: of all heads, and of the selected one.

const MAX_ROW_HEIGHT = 14, MAX_DISTANCES_HEIGHT = 460, BIN_LABEL_HEIGHT = 70;

// The distances of a bin: 1, 2, 3–4, 5–8, …
function binLabel(bin) {
  return bin === 0 ? "self" : bin < 3 ? `${bin}` : `${formatCount(2 ** (bin - 2) + 1)}–${formatCount(2 ** (bin - 1))}`;
}

const describeBin = (bin) => (bin === 0 ? "the token itself" : `${binLabel(Math.abs(bin))} tokens ${bin < 0 ? "before" : "after"}`);

function createSvg(tag, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

function drawTextDistances() {
  const { models, uniform_shares: uniform } = metadata.texts[state.text];
  const shown = visibleModels().filter((model) => models[model].distance_shares);
  byId("distances").hidden = !shown.length || !uniform || uniform.length < 3;
  if (byId("distances").hidden) return;
  const sources = shown.map((model) => ({ model, name: metadata.models[model].name, shares: models[model].distance_shares }));
  const largest = Math.max(...sources.flatMap(({ shares }) => shares.flat(2)));
  byId("distance-maps").style.setProperty("--columns", Math.min(sources.length, 2));
  byId("distance-maps").replaceChildren(...sources.map((source) => createElement("div", { class: "model" }, createTitle(source.name, source.model), createElement("canvas", { class: "distance-map", role: "img", "aria-label": "shares of attention by distance, all heads" }))));
  [...byId("distance-maps").querySelectorAll("canvas")].forEach((canvas, index) => drawDistanceMap(canvas, sources[index], largest));
  byId("distances-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  byId("distance-chart").replaceChildren(createDistanceChart(byId("distance-chart"), sources, uniform));
}

// A row for each head, in the order of the page, and a column for each distance.
function drawDistanceMap(canvas, { shares }, largest) {
  const heads = orderedHeads(), numColumns = shares[0][0].length, numBins = (numColumns - 1) / 2;
  const left = 34, width = Math.min(620, canvas.parentElement.clientWidth || 560) - 2;
  const cell = Math.min(24, (width - left) / numColumns), row = Math.min(MAX_ROW_HEIGHT, Math.max(2, MAX_DISTANCES_HEIGHT / heads.length));
  const bodyHeight = row * heads.length, bodyWidth = cell * numColumns, colors = colorTable("sequential");
  const image = drawPixels(document.createElement("canvas"), numColumns, heads.length, (index) => {
    const [layer, head] = heads[Math.floor(index / numColumns)];
    return colors[Math.round(255 * Math.sqrt(shares[layer][head][index % numColumns] / largest))];
  });
  const context = resizeCanvas(canvas, left + bodyWidth + 2, bodyHeight + BIN_LABEL_HEIGHT);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, left, 0, bodyWidth, bodyHeight);
  context.strokeStyle = cssVariable("--border");
  context.strokeRect(left - 0.5, 0.5, bodyWidth + 1, bodyHeight);
  for (const bin of [numBins, numBins + 1]) context.strokeRect(left + bin * cell, 0.5, 0, bodyHeight);
  context.fillStyle = cssVariable("--muted");
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  let previous = null;
  heads.forEach(([layer, head], index) => {
    const isSorted = state.sort !== "layer", y = index * row;
    if (isSorted ? row >= 10 : layer !== previous) {
      context.fillText(isSorted ? `${layer}·${head}` : `${layer}`, left - 6, y + (isSorted ? row / 2 : Math.max(5, row / 2)));
      if (!isSorted && index) context.strokeRect(left, y, bodyWidth, 0);
    }
    previous = layer;
    if (layer === state.layer && head === state.head) {
      context.save();
      context.strokeStyle = cssVariable("--accent");
      context.lineWidth = 2;
      context.strokeRect(left - 2, y - 1, bodyWidth + 3, row + 2);
      context.restore();
    }
  });
  for (let column = 0; column < numColumns; column++) {
    context.save();
    context.translate(left + (column + 0.5) * cell, bodyHeight + 5);
    context.rotate(-Math.PI / 2);
    context.fillText(binLabel(Math.abs(column - numBins)), 0, 0);
    context.restore();
  }
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const index = Math.floor((event.clientY - box.top) / row), column = Math.floor((event.clientX - box.left - left) / cell);
    return heads[index] && column >= 0 && column < numColumns ? [heads[index], column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = cellAt(event);
    if (!found) return;
    const [[layer, head], column] = found;
    byId("distances-readout").textContent = `Layer ${layer}, head ${head}, ${describeBin(column - numBins)}: ${formatPercent(shares[layer][head][column])}`;
  });
  canvas.addEventListener("click", (event) => {
    const found = cellAt(event);
    if (found) setState({ layer: found[0][0], head: found[0][1] });
  });
}

// Bars of the selected head of each model, and a line for equal attention to all tokens.
function createDistanceChart(container, sources, uniform = null) {
  const lines = sources.map(({ shares, model }) => ({ model, values: shares[state.layer]?.[state.head] })).filter(({ values }) => values);
  if (!lines.length) return "";
  const numColumns = Math.max(...lines.map(({ values }) => values.length)), numBins = (numColumns - 1) / 2;
  const height = 230, left = 44, bottom = 74, cell = Math.min(60, (Math.min(900, container.clientWidth || 900) - left - 8) / numColumns);
  const width = left + cell * numColumns + 8, angle = cell < 24 ? -90 : -50;
  const yMax = Math.max(0.05, ...lines.flatMap(({ values }) => values), ...(uniform ?? []));
  const y = (value) => 8 + (height - bottom - 8) * (1 - value / yMax), x = (column) => left + column * cell;
  const svg = createSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": "share of attention by distance" });
  for (const value of [0, yMax / 2, yMax]) {
    svg.append(createSvg("line", { x1: left, x2: x(numColumns), y1: y(value), y2: y(value), stroke: cssVariable("--border") }),
      createSvg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, formatPercent(value)));
  }
  const barWidth = cell * 0.8 / lines.length;
  lines.forEach(({ model, values }, index) => {
    const missing = (numColumns - values.length) / 2; // a model whose texts are shorter
    values.forEach((value, column) => {
      const bar = createSvg("rect", { x: x(column + missing) + cell * 0.1 + index * barWidth, y: y(value), width: barWidth, height: Math.max(0, y(0) - y(value)), fill: PALETTE[model] });
      bar.append(createSvg("title", {}, `${describeBin(column + missing - numBins)}: ${formatPercent(value)}`));
      svg.append(bar);
    });
  });
  if (uniform) {
    const points = uniform.flatMap((value, column) => [`${x(column)},${y(value)}`, `${x(column + 1)},${y(value)}`]).join(" ");
    svg.append(createSvg("polyline", { points, fill: "none", stroke: cssVariable("--text"), "stroke-width": 1.2, "stroke-dasharray": "4 3" }));
  }
  for (let column = 0; column < numColumns; column++) {
    const center = x(column) + cell / 2;
    svg.append(createSvg("text", { x: center, y: y(0) + 10, "text-anchor": "end", transform: `rotate(${angle} ${center} ${y(0) + 10})` }, binLabel(Math.abs(column - numBins))));
  }
  svg.append(createSvg("text", { x: x(numBins / 2), y: height - 4, "text-anchor": "middle" }, "← before the token"),
    createSvg("text", { x: x(numBins + 1 + numBins / 2), y: height - 4, "text-anchor": "middle" }, "after the token →"));
  return svg;
}

function drawStatisticsDistances() {
  const sources = metadata.statistics.map(({ name, distance_shares: shares }, model) => ({ name, model, shares }));
  byId("all-distances-info").textContent = `Layer ${state.layer}, head ${state.head}.`;
  byId("all-distances").replaceChildren(createDistanceChart(byId("all-distances"), sources));
}
