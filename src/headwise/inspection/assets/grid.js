// Thumbnails of all heads: a row for each layer, or sorted by a measure.

let thumbnails = []; // for each model, the bytes of all its heads

async function drawGrids() {
  const text = state.text, { models, thumbnail_size: size } = metadata.texts[text];
  const loaded = await Promise.all(models.map((_, model) => loadChunk(`thumbnails-${text}-${model}`)));
  if (text !== state.text) return;
  thumbnails = loaded;
  const isDifference = state.view === "difference", isSorted = state.sort !== "layer";
  const grids = isDifference ? [null] : visibleModels();
  const { numHeads } = shape();
  byId("grids").style.setProperty("--columns", Math.min(grids.length, 2));
  byId("grids").replaceChildren(...grids.map((model) => {
    const grid = createElement("div", { class: isSorted ? "grid sorted" : "grid", role: "group" });
    grid.style.setProperty("--heads", numHeads);
    if (!isSorted) grid.append(createElement("span", { class: "label" }), ...Array.from({ length: numHeads }, (_, head) => createElement("span", { class: "label" }, `${head}`)));
    let row = null;
    for (const [layer, head] of orderedHeads()) {
      if (!isSorted && layer !== row) grid.append(createElement("span", { class: "label" }, `${row = layer}`));
      grid.append(createHeadButton(model, layer, head, size, isSorted));
    }
    const names = metadata.models.map(({ name }) => name);
    const title = isDifference ? `${names[state.a]} − ${names[state.b]}` : names[model];
    return createElement("div", { class: "model" }, createTitle(title, model), grid);
  }));
  const order = isSorted ? `Sorted by ${SORT_KEYS[state.sort]}, lowest first. ` : "Rows are layers, columns are heads. ";
  byId("grid-info").textContent = order + (isDifference
    ? "Orange: more attention than in the second model; blue: less."
    : `In each map, rows are ${isCross() ? "target tokens and columns are source tokens" : "queries and columns are keys"}. Each map has its own color scale.`);
  markSelectedHead();
  performance.mark("headwise:heads");
}

function createHeadButton(model, layer, head, size, isSorted) {
  const [height, width] = size, offset = (layer * shape().numHeads + head) * width * height;
  const canvas = document.createElement("canvas");
  if (model === null) {
    const [a, b] = [state.a, state.b].map((index) => thumbnails[index].subarray(offset, offset + width * height));
    const [aMax, bMax] = [state.a, state.b].map((index) => metadata.texts[state.text].models[index].cell_max[layer][head]);
    const limit = Math.max(aMax, bMax), colors = colorTable("diverging");
    drawPixels(canvas, width, height, (i) => divergingColor(colors, (dequantize(a[i], aMax) - dequantize(b[i], bMax)) / limit));
  } else {
    const colors = colorTable("sequential");
    drawPixels(canvas, width, height, (i) => colors[thumbnails[model][offset + i]]);
  }
  const value = isSorted ? sortValue([layer, head], model) ?? sortValue([layer, head]) : null;
  const label = `layer ${layer}, head ${head}${value === null ? "" : `, ${SORT_KEYS[state.sort]} ${formatNumber(value)}`}`;
  const button = createElement("button", { class: "head", "data-layer": layer, "data-head": head, title: label, "aria-label": label, tabindex: -1 }, canvas);
  if (isSorted) button.append(`${layer}·${head}`, createElement("br"), value === null ? "" : formatNumber(value));
  return button;
}

function markSelectedHead() {
  for (const button of document.querySelectorAll(".head, .measure-grid button")) {
    const isSelected = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
    button.classList.toggle("selected", isSelected);
    button.tabIndex = isSelected ? 0 : -1;
  }
}
