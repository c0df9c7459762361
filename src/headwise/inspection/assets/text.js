// The text, its tokens tinted by what the chosen one looks at, and what models say about it.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children); // strings become text, never HTML
  return made;
}
const by = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
const signed = (text) => (Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"));
const short = (x) => signed(x.toFixed(Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2));
const weight = (x) => signed(x.toFixed(x !== 0 && Math.abs(x) < 0.01 ? 4 : 3));

function drawText() {
  const text = about.texts[state.text];
  const told = [`${text.tokens.length.toLocaleString("en")} tokens`];
  if (text.label !== null) told.push(`its label: ${text.label}`);
  if (text.size > 1) told.push(`maps show groups of ${text.size} tokens, arcs the 8 strongest keys of each`);
  if (text.cut) told.push("cut: it is longer than the model reads");
  by("about").textContent = told.join(" · ");
  const tags = text.models.find((own) => own.prediction?.tokens)?.prediction.tokens;
  by("tokens").replaceChildren(...text.tokens.flatMap((token, at) => {
    const made = element("span", { "data-token": at, tabindex: -1 }, token);
    if (tags && tags[at] !== "O") made.append(element("sub", {}, tags[at]));
    return [made, " "];
  }));
  const answers = about.models.map((model, at) => answer(model.name, text.models[at].prediction, at));
  by("answers").replaceChildren(...(text.models.some((own) => own.prediction) || about.models.length > 1 ? answers : []));
}

function answer(name, prediction, at) {
  const made = element("div", { class: "answer" }, titled(name, at));
  for (const [label, share] of prediction?.labels ?? []) {
    const bar = element("b");
    bar.style.width = percent(share);
    bar.style.background = PALETTE[at];
    made.append(element("div", { class: "bar" }, element("span", { title: label }, label), element("i", {}, bar), element("span", {}, percent(share))));
  }
  if (prediction?.rating !== undefined) made.append(element("div", {}, `says ${short(prediction.rating)}`));
  return made;
}

function titled(name, at) {
  const dot = element("i", { class: "dot" });
  dot.style.background = PALETTE[at] ?? "linear-gradient(90deg, #0072b2, #be4b00)";
  return element("h3", {}, dot, name);
}

function tint(map) {
  const colours = table("weights");
  const found = state.token === null ? [] : looks(map, state.token, state.threshold);
  const given = new Map(found), most = found.length ? found[0][1] : 1;
  for (const span of by("tokens").children) {
    const at = Number(span.dataset.token), share = given.has(at) ? Math.sqrt(given.get(at) / most) : 0;
    const colour = colours[Math.round(255 * share)];
    span.style.background = share > 0 ? css(colour) : "";
    span.style.color = share > 0 ? readable(colour) : "";
    span.classList.toggle("chosen", at === state.token);
  }
}
