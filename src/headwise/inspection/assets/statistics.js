// Head statistics over a dataset.

function drawStatistics() {
  const statistics = metadata.statistics;
  if (!statistics.length) return;
  byId("statistics").hidden = false;
  const { texts, tokens, empty } = statistics[0];
  byId("statistics-title").textContent = `Statistics over ${formatCount(texts)} texts, ${formatCount(tokens)} tokens`;
  for (const id of ["measures", "matrices"]) byId(id).style.setProperty("--columns", Math.min(statistics.length, 2));
  const skipped = empty ? ` ${formatCount(empty)} rows without text were skipped.` : "";
  byId("measure-info").textContent = `For each head: ${metadata.measures[state.measure]}, averaged over all tokens.${skipped}`;
  drawMeasures();
  drawReceived();
  drawMatrices();
}

function drawMeasures() {
  const values = metadata.statistics.flatMap(({ measures }) => measures[state.measure].flat());
  const isShare = state.measure !== "distance" && state.measure !== "entropy";
  const low = isShare ? 0 : Math.min(...values), high = Math.max(...values, low + 1e-9);
  const colors = colorTable("sequential");
  byId("measures").replaceChildren(...metadata.statistics.map(({ name, measures }, model) => {
    const rows = measures[state.measure], numHeads = rows[0].length;
    const grid = createElement("div", { class: "measure-grid" }, createElement("span"), ...rows[0].map((_, head) => createElement("span", { class: "label" }, `${head}`)));
    grid.style.setProperty("--heads", numHeads);
    rows.forEach((row, layer) => {
      grid.append(createElement("span", { class: "label" }, `${layer}`));
      row.forEach((value, head) => {
        const color = colors[Math.round(235 * (value - low) / (high - low))];
        const label = `layer ${layer}, head ${head}: ${formatNumber(value)}`;
        const button = createElement("button", { "data-layer": layer, "data-head": head, title: label, "aria-label": label, tabindex: -1 }, formatNumber(value));
        button.style.background = toCss(color);
        button.style.color = contrastingText(color);
        grid.append(button);
      });
    });
    return createElement("div", { class: "model" }, createTitle(name, model), grid);
  }));
  markSelectedHead();
}

function drawReceived() {
  drawStatisticsDistances();
  const width = 560, height = 170, left = 34, bottom = 26;
  const lines = metadata.statistics.map(({ received }) => received[state.layer]?.[state.head]).filter(Boolean);
  if (!lines.length) return;
  const yMax = Math.max(1.5, ...lines.flat()), numBins = lines[0].length;
  const x = (bin) => left + (width - left - 8) * (bin + 0.5) / numBins, y = (value) => (height - bottom) * (1 - value / yMax) + 4;
  const svg = createSvg("svg", { viewBox: `0 0 ${width} ${height}`, class: "received", role: "img" });
  for (const value of [0, 1, yMax]) {
    svg.append(
      createSvg("line", { x1: left, x2: width - 8, y1: y(value), y2: y(value), stroke: cssVariable("--border"), "stroke-dasharray": value === 1 ? "4 3" : "none" }),
      createSvg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value === yMax ? formatNumber(value) : `${value}`));
  }
  svg.append(
    createSvg("text", { x: left, y: height - 6 }, "start of the text"),
    createSvg("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, "end of the text"));
  lines.forEach((line, model) => {
    const points = line.map((value, bin) => `${x(bin)},${y(value)}`).join(" ");
    svg.append(createSvg("polyline", { points, fill: "none", stroke: PALETTE[model], "stroke-width": 2 }));
  });
  byId("received").replaceChildren(svg);
  byId("received-info").textContent = `Layer ${state.layer}, head ${state.head}. The average over all tokens is 1.`;
}

async function drawMatrices() {
  const colors = colorTable("diverging");
  const matrices = await Promise.all(metadata.statistics.map(async ({ name, clusters, measures }, model) => {
    const cells = await loadChunk(`similarity-${model}`), size = clusters.length, numHeads = measures.distance[0].length;
    const order = clusters.map((cluster, index) => [cluster, index]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, index]) => index);
    const canvas = createElement("canvas", { class: "matrix", role: "img", "aria-label": "similarity of heads" });
    drawPixels(canvas, size, size, (index) => {
      const byte = cells[order[Math.floor(index / size)] * size + order[index % size]];
      return byte === 255 ? colors[127] : colors[Math.round(byte * 255 / 254)];
    });
    const headLabel = (index) => `${Math.floor(index / numHeads)}·${index % numHeads}`;
    const headsAtPointer = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientY - box.top, event.clientX - box.left].map((offset) => order[Math.min(size - 1, Math.max(0, Math.floor(offset / box.width * size)))]);
    };
    canvas.addEventListener("pointermove", (event) => {
      const [i, j] = headsAtPointer(event), byte = cells[i * size + j];
      byId("similarity-readout").textContent = `${name}, heads ${headLabel(i)} and ${headLabel(j)}: ${byte === 255 ? "not compared" : formatNumber(byte / 127 - 1)}, clusters ${clusters[i]} and ${clusters[j]}`;
    });
    canvas.addEventListener("click", (event) => {
      const [i] = headsAtPointer(event);
      setState({ layer: Math.floor(i / numHeads), head: i % numHeads });
    });
    const numClusters = new Set(clusters).size;
    return createElement("div", { class: "model" }, createTitle(name, model), canvas,
      createElement("p", { class: "muted" }, `${size} heads in ${numClusters} clusters; blue −1, orange 1`));
  }));
  byId("matrices").replaceChildren(...matrices);
}
