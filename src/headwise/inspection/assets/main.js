// Controls, keyboard shortcuts and redrawing.

const fillSelect = (select, options, selected) => {
  select.replaceChildren(...options.map(([value, text]) => createElement("option", { value }, text)));
  select.value = String(selected);
};

function updateControls() {
  const { numLayers } = shape(), hasSeveralModels = metadata.models.length > 1;
  const names = metadata.models.map(({ name }, model) => [model, name]);
  byId("title").textContent = metadata.title;
  const rows = firstParts(), parts = partsOfRow(metadata.texts[state.text].row);
  byId("texts-label").hidden = rows.length < 2;
  fillSelect(byId("text"), rows.map((text) => [metadata.texts[text].row, metadata.texts[text].title]), metadata.texts[state.text].row);
  byId("part-label").hidden = parts.length < 2;
  fillSelect(byId("part"), parts.map((text) => [text, metadata.texts[text].part]), state.text);
  fillSelect(byId("layer-filter"), [["", "all"], ...Array.from({ length: numLayers }, (_, layer) => [layer, `layer ${layer}`])], state.layerFilter ?? "");
  fillSelect(byId("sort"), availableSortKeys().map((name) => [name, SORT_KEYS[name]]), state.sort);
  byId("view-label").hidden = !hasSeveralModels;
  fillSelect(byId("view"), [["all", "side by side"], ["difference", "difference of two"]], state.view);
  byId("pair-label").hidden = !hasSeveralModels || state.view !== "difference";
  fillSelect(byId("a"), names, state.a);
  fillSelect(byId("b"), names, state.b);
  fillSelect(byId("measure"), Object.entries(metadata.measures), state.measure);
  byId("threshold").value = Math.round(100 * Math.sqrt(state.threshold));
  byId("threshold-value").textContent = state.threshold ? formatWeight(state.threshold) : "–";
}

const textIndices = metadata.texts.map((_, text) => text);
const partsOfRow = (row) => textIndices.filter((text) => metadata.texts[text].row === row);
// The index of the first part of each text.
const firstParts = () => textIndices.filter((text) => text === 0 || metadata.texts[text].row !== metadata.texts[text - 1].row);

// Show another text, in the same part if it has it.
function showRow(row) {
  const parts = partsOfRow(row), { part } = metadata.texts[state.text];
  if (parts.length) setState({ text: parts.find((text) => metadata.texts[text].part === part) ?? parts[0] });
}

// Change the state and redraw the parts of the page that depend on the changes.
function setState(changes) {
  const previous = { ...state };
  Object.assign(state, changes);
  const { numLayers, numHeads, numTokens } = shape();
  if (state.text !== previous.text) state.token = state.key = null;
  if (!availableSortKeys().includes(state.sort)) state.sort = "layer";
  state.layer = Math.min(state.layer, numLayers - 1);
  state.head = Math.min(state.head, numHeads - 1);
  if (state.layerFilter !== null && state.layerFilter >= numLayers) state.layerFilter = null;
  if (state.token !== null && state.token >= numTokens) state.token = null;
  const hasChanged = (...names) => names.some((name) => state[name] !== previous[name]);
  if (hasChanged("theme")) document.documentElement.dataset.theme = state.theme;
  updateControls();
  if (hasChanged("text", "theme", "token")) drawText();
  if (hasChanged("text", "layerFilter", "sort", "view", "a", "b", "theme")) drawGrids();
  if (hasChanged("text", "layer", "head", "layerFilter", "sort", "view", "a", "b", "theme")) drawTextDistances();
  if (hasChanged("theme", "measure")) drawStatistics();
  else if (hasChanged("layer", "head") && metadata.statistics.length) drawReceived();
  return drawHead();
}

function moveHead(layerStep, headStep) {
  const heads = orderedHeads(), { numHeads } = shape();
  const index = Math.max(0, heads.findIndex(([layer, head]) => layer === state.layer && head === state.head));
  const step = headStep + layerStep * (state.sort === "layer" ? numHeads : 1);
  const [layer, head] = heads[Math.min(heads.length - 1, Math.max(0, index + step))];
  setState({ layer, head });
}

const nextValue = (value, values) => values[(values.indexOf(value) + 1) % values.length];
const SHORTCUTS = {
  ArrowLeft: () => moveHead(0, -1),
  ArrowRight: () => moveHead(0, 1),
  ArrowUp: () => moveHead(-1, 0),
  ArrowDown: () => moveHead(1, 0),
  j: () => setState({ token: Math.min(shape().numTokens - 1, (state.token ?? -1) + 1) }),
  k: () => setState({ token: Math.max(0, (state.token ?? 1) - 1) }),
  Escape: () => setState({ token: null, key: null }),
  "[": () => showRow(metadata.texts[state.text].row - 1),
  "]": () => showRow(metadata.texts[state.text].row + 1),
  p: () => setState({ text: nextValue(state.text, partsOfRow(metadata.texts[state.text].row)) }),
  s: () => setState({ sort: nextValue(state.sort, availableSortKeys()) }),
  d: () => metadata.models.length > 1 && setState({ view: nextValue(state.view, ["all", "difference"]) }),
  t: () => setState({ theme: theme() === "dark" ? "light" : "dark" }),
  "?": () => byId("shortcuts").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input") || byId("shortcuts").open) return;
  if (event.key in SHORTCUTS) {
    event.preventDefault();
    SHORTCUTS[event.key]();
  }
});
document.addEventListener("click", (event) => {
  const head = event.target.closest("[data-layer]"), token = event.target.closest("[data-token]");
  if (head) setState({ layer: Number(head.dataset.layer), head: Number(head.dataset.head) });
  if (token) setState({ token: Number(token.dataset.token) === state.token ? null : Number(token.dataset.token) });
});
byId("theme").addEventListener("click", SHORTCUTS.t);
byId("help").addEventListener("click", SHORTCUTS["?"]);
byId("text").addEventListener("change", (event) => showRow(Number(event.target.value)));
byId("part").addEventListener("change", (event) => setState({ text: Number(event.target.value) }));
for (const name of ["a", "b"]) byId(name).addEventListener("change", (event) => setState({ [name]: Number(event.target.value) }));
for (const name of ["sort", "view", "measure"]) byId(name).addEventListener("change", (event) => setState({ [name]: event.target.value }));
byId("layer-filter").addEventListener("change", (event) => {
  const layerFilter = event.target.value === "" ? null : Number(event.target.value);
  setState({ layerFilter, layer: layerFilter ?? state.layer });
});
byId("threshold").addEventListener("input", (event) => setState({ threshold: Math.round((event.target.value / 100) ** 2 * 1e4) / 1e4 }));

function drawAll() {
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  updateControls();
  drawText();
  const headDrawn = drawGrids().then(drawHead).then(drawTextDistances);
  headDrawn.then(drawStatistics);
  return headDrawn;
}

let resizeTimer = null;
addEventListener("resize", () => { clearTimeout(resizeTimer); resizeTimer = setTimeout(() => drawHead().then(drawTextDistances), 120); });
addEventListener("hashchange", () => { readUrl(); drawAll(); });
for (const media of [darkMedia, printMedia]) media.addEventListener("change", drawAll);
readUrl();
// For the console and for tests.
globalThis.headwise = {
  metadata, state, setState, ready: drawAll(),
  cellWeight: async (text, model, layer, head, i, j) => cellWeight(await loadMap(text, model, layer, head), i, j),
  attendedKeys: async (text, model, layer, head, query) => attendedKeys(await loadMap(text, model, layer, head), query, 0),
};
