// One head of each model: its map and arcs, and the difference of two models.

let maps = []; // of the visible models
let latestRequest = 0;

async function drawHead() {
  const request = ++latestRequest, models = visibleModels();
  const { layer, head, text } = state;
  const loaded = await Promise.all(models.map((model) => loadMap(text, model, layer, head)));
  if (request !== latestRequest) return; // another head was selected in the meantime
  maps = loaded;
  const { tokens, part, models: textModels } = metadata.texts[text], keys = keyTokens(metadata.texts[text]);
  byId("head-title").textContent = `Layer ${layer}, head ${head}${part ? `, ${part}` : ""}`;
  const cards = models.map((model, index) => createCard(createTitle(metadata.models[model].name, model), headSummary(textModels[model]), index));
  if (state.view === "difference") cards.push(createCard(createTitle("difference", null), "orange: larger in the first model; blue: smaller", null));
  byId("cards").className = cards.length === 1 ? "models single" : cards.length > 2 ? "models many" : "models";
  byId("cards").style.setProperty("--columns", cards.length);
  byId("cards").replaceChildren(...cards.map(({ node }) => node));
  const maxWeight = Math.max(...maps.map((map) => map.cellMax));
  cards.forEach(({ canvas, colorbar, arcsPanel, zoomPanel }, index) => {
    if (index < maps.length) {
      const map = maps[index], colors = colorTable("sequential"), scale = Math.sqrt(map.cellMax / maxWeight);
      drawHeatmap(canvas, map, tokens, keys, (i) => {
        const byte = map.cells[i];
        return dequantize(byte, map.cellMax) < state.threshold ? colors[0] : colors[Math.round(byte * scale)];
      });
      colorbar.replaceChildren(createColorbar(maxWeight, "sequential"));
      drawLinks(arcsPanel, map);
      if (state.token !== null) scrollToToken(arcsPanel, state.token);
      if (zoomPanel) drawZoom(zoomPanel, map, tokens, keys);
    } else {
      const differences = subtractMaps(maps[0], maps[1]), colors = colorTable("diverging");
      const limit = differences.reduce((largest, x) => Math.max(largest, Math.abs(x)), 1e-9);
      drawHeatmap(canvas, maps[0], tokens, keys, (i) => divergingColor(colors, Math.abs(differences[i]) < state.threshold ? 0 : differences[i] / limit));
      colorbar.replaceChildren(createColorbar(limit, "diverging"));
    }
  });
  tintTokens(maps[0]);
  markSelectedHead();
  updateReadout();
  writeUrl();
  performance.mark("headwise:head");
}

// A card with the map and the arcs of a model; the card of the difference has no model index and no arcs.
function createCard(title, summary, index) {
  const canvas = createElement("canvas", { class: "heatmap", role: "img", "aria-label": "attention map" });
  const colorbar = createElement("div"), map = createElement("div", {}, canvas, colorbar);
  const zoomPanel = index !== null && maps[index].isGrouped ? createElement("div") : null;
  const arcsPanel = index === null ? null : createArcsPanel();
  const views = createElement("div", { class: zoomPanel ? "views long" : "views" }, map, ...[zoomPanel, arcsPanel].filter(Boolean));
  const node = createElement("div", { class: "card" }, title, createElement("p", { class: "muted" }, summary), views);
  canvas.addEventListener("pointermove", (event) => showTooltip(event, cellAtPointer(canvas, event)));
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const cell = cellAtPointer(canvas, event);
    if (cell) setState({ token: cell[0] * maps[0].querySize, key: maps[0].isGrouped ? cell[1] * maps[0].keySize : null });
  });
  if (arcsPanel) {
    const draw = (token) => drawLinks(arcsPanel, maps[index], token);
    arcsPanel.addEventListener("pointermove", (event) => {
      const token = arcsPanel.tokenAtPointer(event);
      if (token !== null) { draw(token); describeToken(token); }
    });
    arcsPanel.addEventListener("pointerleave", () => { draw(null); updateReadout(); });
    arcsPanel.addEventListener("click", (event) => setState({ token: arcsPanel.tokenAtPointer(event) }));
  }
  return { node, canvas, colorbar, arcsPanel, zoomPanel };
}

// Arcs between the tokens of a text, or lines from target tokens to source tokens.
function drawLinks(panel, map, hoveredToken = null) {
  const text = metadata.texts[state.text];
  if (isCross()) drawAlignment(panel, map, text.tokens, text.key_tokens, hoveredToken);
  else drawArcs(panel, map, text.tokens, hoveredToken);
}

function headSummary({ distance, entropy, w }) {
  const { layer, head } = state;
  const parts = [`entropy ${formatNumber(entropy[layer][head])} bits`];
  if (distance) parts.unshift(`distance ${formatNumber(distance[layer][head])} tokens`);
  if (w) parts.push(`learned w ${formatNumber(w[layer][head])}`);
  return parts.join(" · ");
}

const subtractMaps = (a, b) => Float32Array.from(a.cells, (byte, index) => dequantize(byte, a.cellMax) - dequantize(b.cells[index], b.cellMax));

// Show the weights of a cell in all visible models.
function showTooltip(event, cell) {
  if (!cell) return hideTooltip();
  const { tokens, group_sizes: [querySize, keySize] } = metadata.texts[state.text], [i, j] = cell;
  const lines = visibleModels().map((model, index) => `${metadata.models.length > 1 ? `${metadata.models[model].name}: ` : ""}${formatWeight(cellWeight(maps[index], i, j))}`);
  if (state.view === "difference") lines.push(`difference: ${formatWeight(cellWeight(maps[0], i, j) - cellWeight(maps[1], i, j))}`);
  placeTooltip(event, `${groupLabel(tokens, i, querySize)} → ${groupLabel(keyTokens(metadata.texts[state.text]), j, keySize)}`, lines);
}

function placeTooltip(event, title, lines) {
  const tooltip = byId("tooltip");
  tooltip.replaceChildren(createElement("b", {}, title), ...lines.flatMap((line) => [createElement("br"), line]));
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tooltip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
  byId("readout").textContent = `${title}: ${lines.join(", ")}`;
}

function hideTooltip() {
  byId("tooltip").hidden = true;
  updateReadout();
}

function describeToken(token) {
  const { tokens } = metadata.texts[state.text], names = keyTokens(metadata.texts[state.text]);
  const descriptions = maps.map((map, index) => {
    const label = (key) => (map.isGrouped ? `${names[key]} (${key})` : names[key]);
    const keys = attendedKeys(map, token, state.threshold).slice(0, map.isGrouped ? NUM_TOP_KEYS : 3).map(([key, weight]) => `${label(key)} ${formatWeight(weight)}`);
    return `${maps.length > 1 ? `${metadata.models[visibleModels()[index]].name}: ` : ""}${keys.join(", ") || "no weight above the threshold"}`;
  });
  byId("readout").textContent = `${tokens[token]} (${token}) attends to ${descriptions.join("; ")}`;
}

function updateReadout() {
  if (state.token !== null) describeToken(state.token);
  else byId("readout").textContent = "Hover over a cell or a token for its weights; click a token to select it.";
}
