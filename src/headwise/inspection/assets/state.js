// What is looked at. It stands in the address, so that a link leads to the same view: #layer=3&head=5

const SORTS = { layer: "layer", distance: "distance", entropy: "entropy", w: "learned w" };
const state = { text: 0, layer: 0, head: 0, token: null, only: null, sort: "layer", view: "all", a: 0, b: 1, threshold: 0,
  theme: null, measure: "distance" };
const first = { ...state };

const wholeNumber = (value, below) => {
  const found = /^\d+$/.test(value ?? "") ? Number(value) : NaN;
  return found < below ? found : null;
};

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, first);
  const models = about.models.length;
  first.b = Math.min(1, models - 1);
  state.text = wholeNumber(given.get("text"), about.texts.length) ?? 0;
  const { layers, heads, tokens } = shape();
  state.layer = wholeNumber(given.get("layer"), layers) ?? 0;
  state.head = wholeNumber(given.get("head"), heads) ?? 0;
  state.token = wholeNumber(given.get("token"), tokens);
  state.only = wholeNumber(given.get("only"), layers);
  state.a = wholeNumber(given.get("a"), models) ?? 0;
  state.b = wholeNumber(given.get("b"), models) ?? first.b;
  if (sorts().includes(given.get("sort"))) state.sort = given.get("sort");
  if (given.get("view") === "difference" && models > 1) state.view = "difference";
  const threshold = Number(given.get("threshold"));
  if (threshold > 0 && threshold <= 1) state.threshold = threshold;
  if (["light", "dark"].includes(given.get("theme"))) state.theme = given.get("theme");
  if (given.get("measure") in about.measures) state.measure = given.get("measure");
}

function toAddress() {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== null && (value !== first[name] || name === "layer" || name === "head")) told.set(name, value);
  }
  try { history.replaceState(null, "", `#${told}`); } catch { /* a page inside a notebook has no address */ }
}

function shape() {
  const { models, tokens } = about.texts[state.text];
  return { layers: models[0].largest.length, heads: models[0].largest[0].length, tokens: tokens.length };
}

const sorts = () => Object.keys(SORTS).filter((name) => name !== "w" || about.texts.some((text) => text.models.some((own) => own.w)));

// Models that are shown: all, or two and their difference.
const shown = () => (state.view === "difference" ? [state.a, state.b] : about.models.map((_, at) => at));

// Which heads, in which order. Models side by side share it: the first that has the measure says.
function heads() {
  const { layers, heads: count } = shape();
  const found = [];
  for (let layer = 0; layer < layers; layer++) {
    if (state.only !== null && layer !== state.only) continue;
    for (let head = 0; head < count; head++) found.push([layer, head]);
  }
  if (state.sort === "layer") return found;
  return found.sort((a, b) => (measured(a) ?? 0) - (measured(b) ?? 0));
}

function measured([layer, head], model = null) {
  const { models } = about.texts[state.text];
  const own = model === null ? shown().map((at) => models[at]).find((one) => one[state.sort]) : models[model];
  return own?.[state.sort]?.[layer][head] ?? null;
}
