// Target tokens on the left and source tokens on the right, with lines from each target token to the source tokens that
// it attends to. The shorter text is spread over the height of the longer one.

const COLUMN_WIDTH = 150;

function drawAlignment(panel, map, tokens, sourceTokens, hoveredToken = null) {
  const total = Math.max(tokens.length, sourceTokens.length) * ROW_HEIGHT;
  panel.style.height = `${total + 10}px`;
  const [canvas, spacer] = panel.children;
  const width = panel.clientWidth, height = Math.min(panel.clientHeight, total + 8), column = Math.min(COLUMN_WIDTH, width * 0.3);
  spacer.style.height = `${Math.max(0, total + 8 - height)}px`;
  panel.redraw = () => drawAlignment(panel, map, tokens, sourceTokens, hoveredToken);
  const context = resizeCanvas(canvas, Math.max(50, width), Math.max(20, height)), top = panel.scrollTop - 4;
  const position = (token, length) => (token + 0.5) * total / length;
  const targetY = (token) => position(token, tokens.length) - top, sourceY = (token) => position(token, sourceTokens.length) - top;
  const isVisible = (y) => y > -ROW_HEIGHT && y < height + ROW_HEIGHT;
  const selected = hoveredToken ?? state.token, maxWeight = map.isGrouped ? map.topWeightMax : map.cellMax;
  const queries = selected !== null ? [selected] : [...tokens.keys()].filter((token) => isVisible(targetY(token)));
  const links = [];
  for (const query of queries) {
    const entries = attendedKeys(map, query, Math.max(state.threshold, selected === null ? maxWeight * 0.02 : 0));
    for (const [key, weight] of entries.slice(0, MAX_KEYS_PER_QUERY)) links.push([query, key, weight]);
  }
  const [left, right] = [column + 8, width - column - 8];
  context.strokeStyle = cssVariable("--accent");
  for (const [query, key, weight] of links.sort((a, b) => a[2] - b[2]).slice(-MAX_ARCS)) {
    const intensity = Math.sqrt(weight / maxWeight);
    context.globalAlpha = Math.max(0.05, intensity);
    context.lineWidth = Math.max(0.75, 4 * intensity);
    context.beginPath();
    context.moveTo(left, targetY(query));
    context.bezierCurveTo((left + right) / 2, targetY(query), (left + right) / 2, sourceY(key), right, sourceY(key));
    context.stroke();
  }
  context.globalAlpha = 1;
  context.textBaseline = "middle";
  const weights = new Map(selected === null ? [] : links.map(([, key, weight]) => [key, weight]));
  const drawToken = (text, x, y, isSelected, isMuted) => {
    if (!isVisible(y)) return;
    context.font = `${isSelected ? "600 " : ""}13px system-ui, sans-serif`;
    context.fillStyle = cssVariable(isSelected ? "--accent" : isMuted ? "--muted" : "--text");
    context.fillText(truncateText(context, text, column - 8), x, y);
  };
  context.textAlign = "right";
  tokens.forEach((token, index) => drawToken(token, column, targetY(index), index === selected, selected !== null && index !== selected));
  context.textAlign = "left";
  sourceTokens.forEach((token, index) => drawToken(weights.has(index) ? `${token}  ${formatWeight(weights.get(index))}` : token, width - column, sourceY(index), false, selected !== null && !weights.has(index)));
  panel.positionOf = (token) => position(token, tokens.length) - ROW_HEIGHT / 2;
  panel.tokenAtPointer = (event) => {
    const box = canvas.getBoundingClientRect();
    const token = Math.floor((event.clientY - box.top + top) / total * tokens.length);
    return event.clientX - box.left < left && token >= 0 && token < tokens.length ? token : null;
  };
}
