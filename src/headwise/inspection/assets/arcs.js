// Tokens from top to bottom, with arcs from queries to the keys that they attend to. Distant keys have wider arcs.

const ROW_HEIGHT = 19, TOKEN_WIDTH = 132, MAX_ARCS = 3000, MAX_KEYS_PER_QUERY = 24;

function createArcsPanel() {
  const canvas = document.createElement("canvas"), spacer = createElement("div");
  const panel = createElement("div", { class: "arcs", tabindex: -1, role: "img", "aria-label": "links from queries to keys" }, canvas, spacer);
  panel.addEventListener("scroll", () => panel.redraw?.());
  return panel;
}

function drawArcs(panel, map, tokens, hoveredToken = null) {
  panel.style.height = `${tokens.length * ROW_HEIGHT + 10}px`;
  const [canvas, spacer] = panel.children;
  const width = panel.clientWidth, height = Math.min(panel.clientHeight, tokens.length * ROW_HEIGHT + 8);
  spacer.style.height = `${Math.max(0, tokens.length * ROW_HEIGHT + 8 - height)}px`;
  panel.positionOf = null;
  panel.redraw = () => drawArcs(panel, map, tokens, hoveredToken);
  const context = resizeCanvas(canvas, Math.max(50, width), Math.max(20, height)), top = panel.scrollTop - 4;
  const y = (token) => token * ROW_HEIGHT - top + ROW_HEIGHT / 2;
  const firstVisible = Math.max(0, Math.floor(top / ROW_HEIGHT));
  const endVisible = Math.min(tokens.length, Math.ceil((top + height) / ROW_HEIGHT) + 1);
  const selected = hoveredToken ?? state.token, maxWeight = map.isGrouped ? map.topWeightMax : map.cellMax;
  let arcs = [];
  const [start, stop] = selected !== null ? [selected, selected + 1] : map.isGrouped ? [firstVisible, endVisible] : [0, tokens.length];
  for (let query = start; query < stop; query++) {
    const entries = attendedKeys(map, query, Math.max(state.threshold, selected === null ? maxWeight * 0.02 : 0));
    for (const [key, weight] of entries.slice(0, MAX_KEYS_PER_QUERY)) arcs.push([query, key, weight]);
  }
  arcs = arcs.sort((a, b) => a[2] - b[2]).slice(-MAX_ARCS);
  const maxDistance = arcs.reduce((largest, [query, key]) => Math.max(largest, Math.abs(query - key)), 1);
  const maxArcWidth = (width - TOKEN_WIDTH - 90) * 1.3;
  const widthOf = map.isGrouped // distances of long texts are on a logarithmic scale
    ? (distance) => maxArcWidth * Math.log2(1 + distance) / Math.log2(1 + tokens.length)
    : (distance) => distance * Math.min(ROW_HEIGHT * 0.8, maxArcWidth / maxDistance);
  const isLight = theme() === "light";
  const colors = { backward: isLight ? "#0072b2" : "#56b4e9", forward: isLight ? "#c65a00" : "#f0a050", self: cssVariable("--muted") };
  for (const [query, key, weight] of arcs) {
    const arcWidth = 16 + widthOf(Math.abs(query - key)), intensity = Math.sqrt(weight / maxWeight);
    const isVisible = selected !== null || (key >= firstVisible && key < endVisible);
    context.globalAlpha = Math.max(0.05, intensity) * (isVisible ? 1 : 0.25);
    context.strokeStyle = key < query ? colors.backward : key > query ? colors.forward : colors.self;
    context.lineWidth = Math.max(0.75, 4 * intensity);
    context.beginPath();
    context.moveTo(TOKEN_WIDTH + 6, y(query));
    if (key === query) context.arc(TOKEN_WIDTH + 11, y(query), 5, Math.PI, 3 * Math.PI);
    else context.bezierCurveTo(TOKEN_WIDTH + arcWidth, y(query), TOKEN_WIDTH + arcWidth, y(key), TOKEN_WIDTH + 6, y(key));
    context.stroke();
  }
  context.globalAlpha = 1;
  const weights = new Map(selected === null ? [] : arcs.map(([, key, weight]) => [key, weight]));
  context.textBaseline = "middle";
  for (let token = firstVisible; token < endVisible; token++) {
    const weight = weights.get(token), isMuted = selected !== null && weight === undefined;
    context.font = `${token === selected ? "600 " : ""}13px system-ui, sans-serif`;
    context.fillStyle = cssVariable(token === selected ? "--accent" : isMuted ? "--muted" : "--text");
    context.textAlign = "right";
    context.fillText(truncateText(context, tokens[token], TOKEN_WIDTH - 8), TOKEN_WIDTH, y(token));
    if (weight !== undefined) {
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = cssVariable("--muted");
      context.fillText(formatWeight(weight), width - 6, y(token));
    }
  }
  panel.tokenAtPointer = (event) => {
    const token = Math.floor((event.clientY - canvas.getBoundingClientRect().top + top) / ROW_HEIGHT);
    return token >= 0 && token < tokens.length ? token : null;
  };
}

function scrollToToken(panel, token, toTop = false) {
  const position = panel.positionOf ? panel.positionOf(token) : token * ROW_HEIGHT;
  if (toTop) panel.scrollTop = position;
  else if (position < panel.scrollTop || position > panel.scrollTop + panel.clientHeight - 2 * ROW_HEIGHT) panel.scrollTop = position - panel.clientHeight / 2;
}
