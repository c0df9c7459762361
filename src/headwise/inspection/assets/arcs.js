// Tokens from top to bottom, and arcs from each to what it looks at: the wider an arc, the farther.

const ROW = 19, TOKENS = 132, MOST_ARCS = 3000, MOST_KEYS = 24;

function makeArcs() {
  const canvas = document.createElement("canvas"), room = element("div");
  const panel = element("div", { class: "arcs", tabindex: -1, role: "img", "aria-label": "arcs from tokens to what they look at" }, canvas, room);
  panel.addEventListener("scroll", () => panel.redraw?.());
  return panel;
}

function drawArcs(panel, map, tokens, hovered = null) {
  panel.style.height = `${tokens.length * ROW + 10}px`;
  const canvas = panel.firstChild, width = panel.clientWidth, height = Math.min(panel.clientHeight, tokens.length * ROW + 8);
  panel.lastChild.style.height = `${Math.max(0, tokens.length * ROW + 8 - height)}px`;
  panel.redraw = () => drawArcs(panel, map, tokens, hovered);
  const context = sized(canvas, Math.max(50, width), Math.max(20, height)), top = panel.scrollTop - 4;
  const y = (token) => token * ROW - top + ROW / 2;
  const from = Math.max(0, Math.floor(top / ROW)), to = Math.min(tokens.length, Math.ceil((top + height) / ROW) + 1);
  const chosen = hovered ?? state.token, most = map.size > 1 ? map.strongest : map.largest;
  let arcs = [];
  const queries = chosen !== null ? [chosen, chosen + 1] : map.size > 1 ? [from, to] : [0, tokens.length];
  for (let query = queries[0]; query < queries[1]; query++) {
    const found = looks(map, query, Math.max(state.threshold, chosen === null ? most * 0.02 : 0));
    for (const [key, value] of found.slice(0, MOST_KEYS)) arcs.push([query, key, value]);
  }
  arcs = arcs.sort((a, b) => a[2] - b[2]).slice(-MOST_ARCS);
  const furthest = arcs.reduce((most, [query, key]) => Math.max(most, Math.abs(query - key)), 1);
  const stretch = Math.min(ROW * 0.8, (width - TOKENS - 90) / furthest * 1.3);
  const light = theme() === "light";
  for (const [query, key, value] of arcs) {
    const wide = 16 + stretch * Math.abs(query - key);
    context.globalAlpha = Math.max(0.05, Math.sqrt(value / most));
    context.strokeStyle = key < query ? (light ? "#0072b2" : "#56b4e9") : key > query ? (light ? "#c65a00" : "#f0a050") : variable("--faint");
    context.lineWidth = Math.max(0.75, 4 * Math.sqrt(value / most));
    context.beginPath();
    context.moveTo(TOKENS + 6, y(query));
    if (key === query) context.arc(TOKENS + 11, y(query), 5, Math.PI, 3 * Math.PI);
    else context.bezierCurveTo(TOKENS + wide, y(query), TOKENS + wide, y(key), TOKENS + 6, y(key));
    context.stroke();
  }
  context.globalAlpha = 1;
  const given = new Map(chosen === null ? [] : arcs.map(([, key, value]) => [key, value]));
  context.textBaseline = "middle";
  for (let token = from; token < to; token++) {
    const value = given.get(token);
    context.font = `${token === chosen ? "600 " : ""}13px system-ui, sans-serif`;
    context.fillStyle = token === chosen ? variable("--accent") : chosen !== null && value === undefined ? variable("--faint") : variable("--ink");
    context.textAlign = "right";
    context.fillText(clipped(context, tokens[token], TOKENS - 8), TOKENS, y(token));
    if (value !== undefined) {
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = variable("--faint");
      context.fillText(weight(value), width - 6, y(token));
    }
  }
  panel.at = (event) => {
    const token = Math.floor((event.clientY - canvas.getBoundingClientRect().top + top) / ROW);
    return token >= 0 && token < tokens.length ? token : null;
  };
}

function reveal(panel, token) {
  const place = token * ROW;
  if (place < panel.scrollTop || place > panel.scrollTop + panel.clientHeight - 2 * ROW) panel.scrollTop = place - panel.clientHeight / 2;
}
