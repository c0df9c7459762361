// All heads as small pictures: a row for each layer, or in the order of a measure.

let thumbs = []; // of each model the bytes of all its heads

async function drawGrids() {
  const { models, thumb: side } = about.texts[state.text], wanted = state.text;
  const found = await Promise.all(models.map((_, model) => bytes(`thumbs-${state.text}-${model}`)));
  if (wanted !== state.text) return;
  thumbs = found;
  const difference = state.view === "difference";
  const grids = difference ? [null] : shown();
  const { heads: count } = shape(), sorted = state.sort !== "layer";
  const many = difference ? 1 : grids.length;
  by("grids").style.setProperty("--columns", many > 2 ? 2 : many);
  by("grids").replaceChildren(...grids.map((model) => {
    const grid = element("div", { class: sorted ? "grid sorted" : "grid", role: "group" });
    grid.style.setProperty("--heads", count);
    if (!sorted) grid.append(element("span", { class: "name" }), ...Array.from({ length: count }, (_, head) => element("span", { class: "name" }, `${head}`)));
    let row = null;
    for (const [layer, head] of heads()) {
      if (!sorted && layer !== row) grid.append(element("span", { class: "name" }, `${row = layer}`));
      grid.append(headButton(model, layer, head, side, sorted));
    }
    const names = about.models.map((own) => own.name);
    const title = difference ? titled(`${names[state.a]} − ${names[state.b]}`, -1) : titled(names[model], model);
    return element("div", { class: "model" }, title, grid);
  }));
  const order = sorted ? `In the order of ${SORTS[state.sort]}, lowest first. ` : "A row for each layer, a column for each head. ";
  by("grid-about").textContent = order + (difference
    ? "Orange: more attention than in the other model; blue: less."
    : "Queries from top to bottom, keys from left to right; each picture has its own scale.");
  mark();
  performance.mark("headwise:heads");
}

function headButton(model, layer, head, side, sorted) {
  const at = (layer * shape().heads + head) * side * side;
  const canvas = document.createElement("canvas");
  if (model === null) {
    const [a, b] = [state.a, state.b].map((one) => thumbs[one].subarray(at, at + side * side));
    const [m, n] = [state.a, state.b].map((one) => about.texts[state.text].models[one].largest[layer][head]);
    const most = Math.max(m, n), colours = table("signed");
    picture(canvas, side, (i) => {
      const apart = (number(a[i], m) - number(b[i], n)) / most;
      return colours[Math.round(127.5 + 127.5 * Math.sign(apart) * Math.sqrt(Math.abs(apart)))];
    });
  } else {
    const colours = table("weights");
    picture(canvas, side, (i) => colours[thumbs[model][at + i]]);
  }
  const value = sorted ? measured([layer, head], model) ?? measured([layer, head]) : null;
  const told = `layer ${layer}, head ${head}${value === null ? "" : `, ${SORTS[state.sort]} ${short(value)}`}`;
  const button = element("button", { class: "head", "data-layer": layer, "data-head": head, title: told, "aria-label": told, tabindex: -1 }, canvas);
  if (sorted) button.append(`${layer}·${head}`, element("br"), value === null ? "" : short(value));
  return button;
}

function mark() {
  for (const button of document.querySelectorAll(".head, .numbers button")) {
    const chosen = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
    button.classList.toggle("chosen", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
}
