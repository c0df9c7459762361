// The text, with tokens tinted by the weights of the selected token, and the predictions.

function createElement(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children); // strings become text, never HTML
  return node;
}
const byId = (id) => document.getElementById(id);
const formatCount = (count) => count.toLocaleString("en");
const formatPercent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
const withMinusSign = (text) => (Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"));
const formatNumber = (x) => withMinusSign(x.toFixed(Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2));
const formatWeight = (x) => withMinusSign(x.toFixed(x !== 0 && Math.abs(x) < 0.01 ? 4 : 3));

// Longer texts are shown one passage at a time.
const PASSAGE_LENGTH = 1024;
const passageOf = (token) => Math.floor(token / PASSAGE_LENGTH);
let passage = 0, shownText = null;

function drawText() {
  const text = metadata.texts[state.text];
  const [querySize, keySize] = text.group_sizes;
  const info = [isCross() ? `${formatCount(text.tokens.length)} target tokens, ${formatCount(text.key_tokens.length)} source tokens` : `${formatCount(text.tokens.length)} tokens`];
  if (text.label !== null) info.push(`label: ${text.label}`);
  if (Math.max(querySize, keySize) > 1) info.push(`maps show groups of ${querySize === keySize ? querySize : `${querySize} × ${keySize}`} tokens, arcs the ${NUM_TOP_KEYS} largest weights of each token`);
  if (text.truncated) info.push("truncated to the model's maximum length");
  byId("text-info").textContent = info.join(" · ");
  const wanted = state.token !== null ? passageOf(state.token) : shownText === text ? passage : 0;
  if (shownText !== text || wanted !== passage) {
    passage = wanted;
    shownText = text;
    drawPassage();
  }
  byId("source").hidden = !isCross();
  const predictions = metadata.models.map(({ name }, model) => createPrediction(name, text.models[model].prediction, model));
  const isShown = text.models.some((model) => model.prediction) || metadata.models.length > 1;
  byId("predictions").replaceChildren(...(isShown ? predictions : []));
}

function drawPassage() {
  const { tokens, key_tokens: sourceTokens, models } = shownText, numPassages = passageOf(tokens.length - 1) + 1;
  const start = passage * PASSAGE_LENGTH, end = Math.min(tokens.length, start + PASSAGE_LENGTH);
  byId("passage").hidden = numPassages < 2;
  byId("passage-range").textContent = `tokens ${formatCount(start + 1)} to ${formatCount(end)} of ${formatCount(tokens.length)}`;
  byId("previous-passage").disabled = passage === 0;
  byId("next-passage").disabled = passage === numPassages - 1;
  const tags = models.find((model) => model.prediction?.token_labels)?.prediction.token_labels;
  byId("tokens").replaceChildren(...tokens.slice(start, end).flatMap((token, index) => {
    const span = createElement("span", { "data-token": start + index, tabindex: -1 }, token), tag = tags?.[start + index];
    if (tag && tag !== "O") span.append(createElement("sub", {}, tag));
    return [span, " "];
  }));
  drawSource(sourceTokens ?? [], 0);
}

// The passage of the source around a token.
function drawSource(tokens, token) {
  const start = passageOf(token) * PASSAGE_LENGTH;
  byId("source-tokens").replaceChildren(...tokens.slice(start, start + PASSAGE_LENGTH).flatMap((text, index) => [createElement("span", { "data-key": start + index }, text), " "]));
}

function movePassage(step) {
  passage += step;
  drawPassage();
  for (const panel of document.querySelectorAll(".arcs")) scrollToToken(panel, passage * PASSAGE_LENGTH, true);
  if (maps.length) tintTokens(maps[0]);
}
byId("previous-passage").addEventListener("click", () => movePassage(-1));
byId("next-passage").addEventListener("click", () => movePassage(1));

function createPrediction(name, prediction, model) {
  const node = createElement("div", { class: "prediction" }, createTitle(name, model));
  for (const [label, probability] of prediction?.labels ?? []) {
    const bar = createElement("b");
    bar.style.width = formatPercent(probability);
    bar.style.background = PALETTE[model];
    node.append(createElement("div", { class: "bar" }, createElement("span", { title: label }, label), createElement("i", {}, bar), createElement("span", {}, formatPercent(probability))));
  }
  if (prediction?.text !== undefined) node.append(createElement("div", { class: "muted" }, prediction.is_given ? "given text" : "generated text"), createElement("div", { class: "generated" }, prediction.text || "(empty)"));
  if (prediction?.value !== undefined) node.append(createElement("div", {}, `predicted value: ${formatNumber(prediction.value)}`));
  return node;
}

// A title with the color of a model; null stands for the difference of two models.
function createTitle(name, model) {
  const dot = createElement("i", { class: "dot" });
  dot.style.background = model === null ? "linear-gradient(90deg, #0072b2, #be4b00)" : PALETTE[model];
  return createElement("h3", {}, dot, name);
}

// Mark the selected token, and tint the tokens that it attends to.
function tintTokens(map) {
  const colors = colorTable("sequential");
  const entries = state.token === null ? [] : attendedKeys(map, state.token, state.threshold);
  const weights = new Map(entries), largest = entries.length ? entries[0][1] : 1;
  if (isCross() && entries.length && !byId("source-tokens").querySelector(`[data-key="${entries[0][0]}"]`)) drawSource(metadata.texts[state.text].key_tokens, entries[0][0]);
  for (const span of byId("tokens").children) span.classList.toggle("selected", Number(span.dataset.token) === state.token);
  for (const span of byId(isCross() ? "source-tokens" : "tokens").children) {
    const weight = weights.get(Number(span.dataset.key ?? span.dataset.token)), isTinted = span.style.background !== "";
    if (weight === undefined && !isTinted) continue;
    const color = weight === undefined ? null : colors[Math.round(255 * Math.sqrt(weight / largest))];
    span.style.background = color ? toCss(color) : "";
    span.style.color = color ? contrastingText(color) : "";
  }
}
