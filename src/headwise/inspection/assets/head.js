// One head, of each model: its map and its arcs, and the difference of two.

let maps = []; // of the models that are shown
let asked = 0;

async function drawHead() {
  const now = ++asked, models = shown();
  const { layer, head, text } = state;
  const found = await Promise.all(models.map((model) => headOf(text, model, layer, head)));
  if (now !== asked) return; // another head was asked for meanwhile
  maps = found;
  const { tokens, models: own } = about.texts[text];
  by("head-title").textContent = `Layer ${layer}, head ${head}`;
  const difference = state.view === "difference";
  const cards = models.map((model, at) => card(titled(about.models[model].name, model), facts(own[model]), at));
  if (difference) cards.push(card(titled("the difference", -1), "orange: the first gives more; blue: it gives less", null));
  const columns = cards.length;
  by("cards").className = columns === 1 ? "models one" : columns > 2 ? "models many" : "models";
  by("cards").style.setProperty("--columns", columns);
  by("cards").replaceChildren(...cards.map((one) => one.card));
  const most = Math.max(...maps.map((map) => map.largest));
  cards.forEach((one, at) => {
    one.canvas.dataset.map = at;
    if (at < maps.length) {
      const colours = table("weights"), scale = Math.sqrt(maps[at].largest / most);
      one.draw = () => drawHeatmap(one.canvas, maps[at], tokens, { most, colourAt: (i) => {
        const byte = maps[at].cells[i];
        return number(byte, maps[at].largest) < state.threshold ? colours[0] : colours[Math.round(byte * scale)];
      } });
      one.scale.replaceChildren(scaleOf(most, "weights"));
    } else {
      const apart = differences(maps[0], maps[1]), widest = apart.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
      const colours = table("signed");
      one.draw = () => drawHeatmap(one.canvas, maps[0], tokens, { most: widest, colourAt: (i) => {
        const x = Math.abs(apart[i]) < state.threshold ? 0 : apart[i] / widest;
        return colours[Math.round(127.5 + 127.5 * Math.sign(x) * Math.sqrt(Math.abs(x)))];
      } });
      one.scale.replaceChildren(scaleOf(widest, "signed"));
    }
    one.draw();
    if (one.panel) {
      drawArcs(one.panel, maps[at], tokens);
      if (state.token !== null) reveal(one.panel, state.token);
    }
  });
  tint(maps[0]);
  mark();
  tell();
  toAddress();
  performance.mark("headwise:head");
}

function card(title, told, at) {
  const canvas = element("canvas", { class: "heatmap", role: "img", "aria-label": "the head's map" });
  const scale = element("div"), map = element("div", {}, canvas, scale);
  const panel = at === null ? null : makeArcs();
  const pictures = element("div", { class: "pictures" }, map, ...(panel ? [panel] : []));
  const made = element("div", { class: "card" }, title, element("p", { class: "faint" }, told), pictures);
  canvas.addEventListener("pointermove", (event) => point(event, under(canvas, event)));
  canvas.addEventListener("pointerleave", unpoint);
  canvas.addEventListener("click", (event) => {
    const place = under(canvas, event);
    if (place) choose({ token: place[0] * maps[0].size });
  });
  if (panel) {
    panel.addEventListener("pointermove", (event) => {
      const token = panel.at(event);
      if (token !== null) { drawArcs(panel, maps[at], about.texts[state.text].tokens, token); tellToken(token); }
    });
    panel.addEventListener("pointerleave", () => { drawArcs(panel, maps[at], about.texts[state.text].tokens); tell(); });
    panel.addEventListener("click", (event) => choose({ token: panel.at(event) }));
  }
  return { card: made, canvas, scale, panel };
}

function facts(own) {
  const { layer, head } = state;
  const told = [`distance ${short(own.distance[layer][head])} tokens`, `entropy ${short(own.entropy[layer][head])} bits`];
  if (own.w) told.push(`learned w ${short(own.w[layer][head])}`);
  return told.join(" · ");
}

const differences = (a, b) => Float32Array.from(a.cells, (byte, at) => number(byte, a.largest) - number(b.cells[at], b.largest));

// What the pointer is at, in every model that is shown.
function point(event, place) {
  if (!place) return unpoint();
  const { tokens, size } = about.texts[state.text], [i, j] = place;
  const lines = shown().map((model, at) => `${about.models.length > 1 ? `${about.models[model].name}: ` : ""}${weight(cellOf(maps[at], i, j))}`);
  if (state.view === "difference") lines.push(`difference: ${weight(cellOf(maps[0], i, j) - cellOf(maps[1], i, j))}`);
  const pair = `${groupName(tokens, i, size)} → ${groupName(tokens, j, size)}`;
  const tip = by("tip");
  tip.replaceChildren(element("b", {}, pair), ...lines.flatMap((line) => [element("br"), line]));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
  by("readout").textContent = `${pair}: ${lines.join(", ")}`;
}

function unpoint() {
  by("tip").hidden = true;
  tell();
}

function tellToken(token) {
  const { tokens } = about.texts[state.text];
  const told = maps.map((map, at) => {
    const best = looks(map, token, state.threshold).slice(0, 3).map(([key, value]) => `${tokens[key]} ${weight(value)}`);
    return `${maps.length > 1 ? `${about.models[shown()[at]].name}: ` : ""}${best.join(", ") || "nothing above the threshold"}`;
  });
  by("readout").textContent = `${tokens[token]} (${token}) looks at ${told.join("; ")}`;
}

function tell() {
  if (state.token !== null) tellToken(state.token);
  else by("readout").textContent = "Point at a cell or a token; click a token to keep it.";
}
