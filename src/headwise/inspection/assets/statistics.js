// What heads do over a data set.

function drawStatistics() {
  const found = about.statistics;
  if (!found.length) return;
  by("statistics").hidden = false;
  const { texts, tokens } = found[0];
  by("statistics-title").textContent = `Over ${texts.toLocaleString("en")} texts, ${tokens.toLocaleString("en")} tokens`;
  const columns = found.length > 2 ? 2 : found.length;
  for (const id of ["measures", "matrices"]) by(id).style.setProperty("--columns", columns);
  const left = found[0].empty ? `; ${found[0].empty.toLocaleString("en")} rows without a text were left out` : "";
  by("measure-about").textContent = `Of each head, ${about.measures[state.measure]}, on average over all tokens${left}.`;
  drawMeasures();
  drawProfile();
  drawMatrices();
}

function drawMeasures() {
  const all = about.statistics.flatMap((own) => own.measures[state.measure].flat());
  const low = state.measure === "distance" || state.measure === "entropy" ? Math.min(...all) : 0, high = Math.max(...all, low + 1e-9);
  const colours = table("weights");
  by("measures").replaceChildren(...about.statistics.map((own, model) => {
    const rows = own.measures[state.measure], heads = rows[0].length;
    const grid = element("div", { class: "numbers" }, element("span"), ...rows[0].map((_, head) => element("span", { class: "name" }, `${head}`)));
    grid.style.setProperty("--heads", heads);
    rows.forEach((row, layer) => {
      grid.append(element("span", { class: "name" }, `${layer}`));
      row.forEach((value, head) => {
        const colour = colours[Math.round(235 * (value - low) / (high - low))];
        const told = `layer ${layer}, head ${head}: ${short(value)}`;
        const button = element("button", { "data-layer": layer, "data-head": head, title: told, "aria-label": told, tabindex: -1 }, short(value));
        button.style.background = css(colour);
        button.style.color = readable(colour);
        grid.append(button);
      });
    });
    return element("div", { class: "model" }, titled(own.name, model), grid);
  }));
  mark();
}

function drawProfile() {
  const width = 560, height = 170, left = 34, bottom = 26;
  const lines = about.statistics.map((own) => own.received[state.layer]?.[state.head]).filter(Boolean);
  if (!lines.length) return;
  const most = Math.max(1.5, ...lines.flat()), places = lines[0].length;
  const x = (at) => left + (width - left - 8) * (at + 0.5) / places, y = (value) => (height - bottom) * (1 - value / most) + 4;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "profile");
  svg.setAttribute("role", "img");
  const add = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
  };
  for (const value of [0, 1, most]) {
    add("line", { x1: left, x2: width - 8, y1: y(value), y2: y(value), stroke: variable("--line"), "stroke-dasharray": value === 1 ? "4 3" : "none" });
    add("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value === 1 ? "1" : value === 0 ? "0" : short(value));
  }
  add("text", { x: left, y: height - 6 }, "the text's beginning");
  add("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, "its end");
  lines.forEach((line, model) => {
    add("polyline", { points: line.map((value, at) => `${x(at)},${y(value)}`).join(" "), fill: "none", stroke: PALETTE[model], "stroke-width": 2 });
  });
  by("profile").replaceChildren(svg);
  by("profile-about").textContent = `Layer ${state.layer}, head ${state.head}; 1 is what an average token receives.`;
}

async function drawMatrices() {
  const colours = table("signed");
  const made = await Promise.all(about.statistics.map(async (own, model) => {
    const cells = await bytes(`similarity-${model}`), count = own.clusters.length, heads = own.measures.distance[0].length;
    const order = own.clusters.map((cluster, at) => [cluster, at]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, at]) => at);
    const canvas = element("canvas", { class: "matrix", role: "img", "aria-label": "how alike heads are" });
    picture(canvas, count, (at) => {
      const byte = cells[order[Math.floor(at / count)] * count + order[at % count]];
      return byte === 255 ? colours[127] : colours[Math.round(byte * 255 / 254)];
    });
    const name = (at) => `${Math.floor(at / heads)}·${at % heads}`;
    const find = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientY - box.top, event.clientX - box.left].map((place) => order[Math.min(count - 1, Math.max(0, Math.floor(place / box.width * count)))]);
    };
    canvas.addEventListener("pointermove", (event) => {
      const [i, j] = find(event), byte = cells[i * count + j];
      by("alike").textContent = `${own.name}, heads ${name(i)} and ${name(j)}: ${byte === 255 ? "not compared" : short(byte / 127 - 1)}, clusters ${own.clusters[i]} and ${own.clusters[j]}`;
    });
    canvas.addEventListener("click", (event) => {
      const [i] = find(event);
      choose({ layer: Math.floor(i / heads), head: i % heads });
    });
    const clusters = new Set(own.clusters).size;
    return element("div", { class: "model" }, titled(own.name, model), canvas,
      element("p", { class: "faint" }, `${count} heads in ${clusters} clusters; blue −1, orange 1`));
  }));
  by("matrices").replaceChildren(...made);
}
