// The state of the page. It is stored in the URL, so links lead to the same view: #layer=3&head=5

const SORT_KEYS = { layer: "layer", distance: "distance", entropy: "entropy", w: "learned w" };
const DEFAULTS = { text: 0, layer: 0, head: 0, token: null, key: null, layerFilter: null, sort: "layer", view: "all", a: 0,
  b: Math.min(1, metadata.models.length - 1), threshold: 0, theme: null, measure: "distance" };
const state = { ...DEFAULTS };

const parseIndex = (value, length) => {
  const index = /^\d+$/.test(value ?? "") ? Number(value) : NaN;
  return index < length ? index : null;
};

function readUrl() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, DEFAULTS);
  const numModels = metadata.models.length;
  state.text = parseIndex(parameters.get("text"), metadata.texts.length) ?? DEFAULTS.text;
  const { numLayers, numHeads, numTokens, numKeys } = shape();
  state.layer = parseIndex(parameters.get("layer"), numLayers) ?? DEFAULTS.layer;
  state.head = parseIndex(parameters.get("head"), numHeads) ?? DEFAULTS.head;
  state.token = parseIndex(parameters.get("token"), numTokens);
  state.key = parseIndex(parameters.get("key"), numKeys);
  state.layerFilter = parseIndex(parameters.get("layerFilter"), numLayers);
  state.a = parseIndex(parameters.get("a"), numModels) ?? DEFAULTS.a;
  state.b = parseIndex(parameters.get("b"), numModels) ?? DEFAULTS.b;
  if (availableSortKeys().includes(parameters.get("sort"))) state.sort = parameters.get("sort");
  if (parameters.get("view") === "difference" && numModels > 1) state.view = "difference";
  const threshold = Number(parameters.get("threshold"));
  if (threshold > 0 && threshold <= 1) state.threshold = threshold;
  if (["light", "dark"].includes(parameters.get("theme"))) state.theme = parameters.get("theme");
  if (parameters.get("measure") in metadata.measures) state.measure = parameters.get("measure");
}

function writeUrl() {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== null && (value !== DEFAULTS[name] || name === "layer" || name === "head")) parameters.set(name, value);
  }
  try { history.replaceState(null, "", `#${parameters}`); } catch { /* the frame of a notebook has no URL */ }
}

function shape() {
  const text = metadata.texts[state.text], { models, tokens } = text;
  return { numLayers: models[0].cell_max.length, numHeads: models[0].cell_max[0].length, numTokens: tokens.length, numKeys: keyTokens(text).length };
}

// Whether the text that is shown is cross-attention, from target tokens to source tokens.
const isCross = () => metadata.texts[state.text].key_tokens !== null;
const availableSortKeys = () => Object.keys(SORT_KEYS).filter((name) => name === "layer" || metadata.texts[state.text].models.some((model) => model[name]));

// The indices of the models that are shown: all, or the two of the difference.
const visibleModels = () => (state.view === "difference" ? [state.a, state.b] : metadata.models.map((_, model) => model));

// The heads that are shown, in order. All models share the order of the first one that has the sort key.
function orderedHeads() {
  const { numLayers, numHeads } = shape();
  const heads = [];
  for (let layer = 0; layer < numLayers; layer++) {
    if (state.layerFilter !== null && layer !== state.layerFilter) continue;
    for (let head = 0; head < numHeads; head++) heads.push([layer, head]);
  }
  if (state.sort === "layer") return heads;
  return heads.sort((a, b) => (sortValue(a) ?? 0) - (sortValue(b) ?? 0));
}

function sortValue([layer, head], model = null) {
  const { models } = metadata.texts[state.text];
  const source = model === null ? visibleModels().map((index) => models[index]).find((candidate) => candidate[state.sort]) : models[model];
  return source?.[state.sort]?.[layer][head] ?? null;
}
