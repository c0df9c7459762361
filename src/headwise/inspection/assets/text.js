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

function drawText() {
  const text = metadata.texts[state.text];
  const info = [`${formatCount(text.tokens.length)} tokens`];
  if (text.label !== null) info.push(`label: ${text.label}`);
  if (text.group_size > 1) info.push(`maps show groups of ${text.group_size} tokens, arcs the ${NUM_TOP_KEYS} largest weights of each token`);
  if (text.truncated) info.push("truncated to the model's maximum length");
  byId("text-info").textContent = info.join(" · ");
  const tags = text.models.find((model) => model.prediction?.token_labels)?.prediction.token_labels;
  byId("tokens").replaceChildren(...text.tokens.flatMap((token, index) => {
    const span = createElement("span", { "data-token": index, tabindex: -1 }, token);
    if (tags && tags[index] !== "O") span.append(createElement("sub", {}, tags[index]));
    return [span, " "];
  }));
  const predictions = metadata.models.map(({ name }, model) => createPrediction(name, text.models[model].prediction, model));
  const isShown = text.models.some((model) => model.prediction) || metadata.models.length > 1;
  byId("predictions").replaceChildren(...(isShown ? predictions : []));
}

function createPrediction(name, prediction, model) {
  const node = createElement("div", { class: "prediction" }, createTitle(name, model));
  for (const [label, probability] of prediction?.labels ?? []) {
    const bar = createElement("b");
    bar.style.width = formatPercent(probability);
    bar.style.background = PALETTE[model];
    node.append(createElement("div", { class: "bar" }, createElement("span", { title: label }, label), createElement("i", {}, bar), createElement("span", {}, formatPercent(probability))));
  }
  if (prediction?.value !== undefined) node.append(createElement("div", {}, `predicted value: ${formatNumber(prediction.value)}`));
  return node;
}

// A title with the color of a model; null stands for the difference of two models.
function createTitle(name, model) {
  const dot = createElement("i", { class: "dot" });
  dot.style.background = model === null ? "linear-gradient(90deg, #0072b2, #be4b00)" : PALETTE[model];
  return createElement("h3", {}, dot, name);
}

function tintTokens(map) {
  const colors = colorTable("sequential");
  const entries = state.token === null ? [] : attendedKeys(map, state.token, state.threshold);
  const weights = new Map(entries), largest = entries.length ? entries[0][1] : 1;
  for (const span of byId("tokens").children) {
    const token = Number(span.dataset.token), intensity = weights.has(token) ? Math.sqrt(weights.get(token) / largest) : 0;
    const color = colors[Math.round(255 * intensity)];
    span.style.background = intensity > 0 ? toCss(color) : "";
    span.style.color = intensity > 0 ? contrastingText(color) : "";
    span.classList.toggle("selected", token === state.token);
  }
}
