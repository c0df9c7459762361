// Controls, keys, and what is drawn again when something was chosen.

const options = (select, pairs, chosen) => {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
  select.value = String(chosen);
};

function controls() {
  const { layers } = shape(), several = about.models.length > 1;
  const names = about.models.map((model, at) => [at, model.name]);
  by("title").textContent = about.title;
  by("texts-label").hidden = about.texts.length < 2;
  options(by("text"), about.texts.map((text, at) => [at, text.title]), state.text);
  options(by("only"), [["", "all"], ...Array.from({ length: layers }, (_, layer) => [layer, `layer ${layer}`])], state.only ?? "");
  options(by("sort"), sorts().map((name) => [name, SORTS[name]]), state.sort);
  by("view-label").hidden = !several;
  options(by("view"), [["all", "side by side"], ["difference", "two and their difference"]], state.view);
  by("pair-label").hidden = !several || state.view !== "difference";
  options(by("a"), names, state.a);
  options(by("b"), names, state.b);
  options(by("measure"), Object.entries(about.measures), state.measure);
  by("threshold").value = Math.round(100 * Math.sqrt(state.threshold));
  by("threshold-shown").textContent = state.threshold ? weight(state.threshold) : "–";
}

// Change what is looked at, and draw what depends on it.
function choose(changes) {
  const before = { ...state };
  Object.assign(state, changes);
  const { layers, heads: count, tokens } = shape();
  if (state.text !== before.text) state.token = null;
  state.layer = Math.min(state.layer, layers - 1);
  state.head = Math.min(state.head, count - 1);
  if (state.only !== null && state.only >= layers) state.only = null;
  if (state.token !== null && state.token >= tokens) state.token = null;
  const changed = (...names) => names.some((name) => state[name] !== before[name]);
  if (changed("theme")) document.documentElement.dataset.theme = state.theme;
  controls();
  if (changed("text", "theme")) drawText();
  if (changed("text", "only", "sort", "view", "a", "b", "theme")) drawGrids();
  if (changed("theme", "measure")) drawStatistics();
  else if (changed("layer", "head") && about.statistics.length) drawProfile();
  return drawHead();
}

function move(layers, others) {
  const order = heads(), { heads: count } = shape();
  const at = Math.max(0, order.findIndex(([layer, head]) => layer === state.layer && head === state.head));
  const step = others + layers * (state.sort === "layer" ? count : 1);
  const [layer, head] = order[Math.min(order.length - 1, Math.max(0, at + step))];
  choose({ layer, head });
}

const next = (value, values) => values[(values.indexOf(value) + 1) % values.length];
const KEYS = {
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  j: () => choose({ token: Math.min(shape().tokens - 1, (state.token ?? -1) + 1) }),
  k: () => choose({ token: Math.max(0, (state.token ?? 1) - 1) }),
  Escape: () => choose({ token: null }),
  "[": () => choose({ text: Math.max(0, state.text - 1) }),
  "]": () => choose({ text: Math.min(about.texts.length - 1, state.text + 1) }),
  s: () => choose({ sort: next(state.sort, sorts()) }),
  d: () => about.models.length > 1 && choose({ view: next(state.view, ["all", "difference"]) }),
  t: () => choose({ theme: theme() === "dark" ? "light" : "dark" }),
  "?": () => by("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input") || by("keys").open) return;
  if (event.key in KEYS) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
document.addEventListener("click", (event) => {
  const head = event.target.closest("[data-layer]"), token = event.target.closest("[data-token]");
  if (head) choose({ layer: Number(head.dataset.layer), head: Number(head.dataset.head) });
  if (token) choose({ token: Number(token.dataset.token) === state.token ? null : Number(token.dataset.token) });
});
by("theme").addEventListener("click", KEYS.t);
by("help").addEventListener("click", KEYS["?"]);
for (const name of ["text", "a", "b"]) by(name).addEventListener("change", (event) => choose({ [name]: Number(event.target.value) }));
for (const name of ["sort", "view", "measure"]) by(name).addEventListener("change", (event) => choose({ [name]: event.target.value }));
by("only").addEventListener("change", (event) => {
  const only = event.target.value === "" ? null : Number(event.target.value);
  choose({ only, layer: only ?? state.layer });
});
by("threshold").addEventListener("input", (event) => choose({ threshold: Math.round((event.target.value / 100) ** 2 * 1e4) / 1e4 }));

function drawAll() {
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  controls();
  drawText();
  const drawn = drawGrids().then(drawHead);
  drawn.then(drawStatistics);
  return drawn;
}

let waiting = null;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawHead, 120); });
addEventListener("hashchange", () => { fromAddress(); drawAll(); });
for (const medium of [systemDark, printing]) medium.addEventListener("change", drawAll);
fromAddress();
// For the console, and for tests: what is shown, and the number in any cell.
globalThis.headwise = { about, state, choose, ready: drawAll(), cell: async (text, model, layer, head, i, j) => cellOf(await headOf(text, model, layer, head), i, j),
  looks: async (text, model, layer, head, query) => looks(await headOf(text, model, layer, head), query, 0) };
