// What the page knows. Maps lie in the file as compressed bytes, a chunk for each layer, unpacked when they are looked at.

const about = JSON.parse(document.getElementById("about-data").textContent);
const unpacked = new Map();
const whole = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", resolve);
});

async function unpack(name) {
  if (!document.getElementById(name)) await whole; // it is further down in the file
  const text = atob(document.getElementById(name).textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function bytes(name) {
  if (!unpacked.has(name)) unpacked.set(name, unpack(name));
  return unpacked.get(name);
}

// A head's cells: bytes[i · side + j]; a byte b stands for (b / 255)² · largest.
async function headOf(text, model, layer, head) {
  const { side, size, tokens, models } = about.texts[text];
  const own = models[model];
  const cells = await bytes(`cells-${text}-${model}-${layer}`);
  const found = {
    side, size, count: tokens.length,
    cells: cells.subarray(head * side * side, (head + 1) * side * side),
    largest: own.largest[layer][head],
  };
  if (size > 1) {
    const [keys, weights] = await Promise.all([
      bytes(`keys-${text}-${model}-${layer}`), bytes(`weights-${text}-${model}-${layer}`)]);
    const length = tokens.length * 8;
    found.keys = new Uint16Array(keys.buffer, keys.byteOffset + 2 * head * length, length);
    found.weights = weights.subarray(head * length, (head + 1) * length);
    found.strongest = own.strongest[layer][head];
  }
  return found;
}

const number = (byte, largest) => (byte / 255) ** 2 * largest;
const cellOf = (map, i, j) => number(map.cells[i * map.side + j], map.largest);

// What a query looks at: [key, weight], strongest first; of a long text its strongest keys.
function looks(map, query, threshold) {
  const found = [];
  if (map.size > 1) {
    for (let at = query * 8; at < query * 8 + 8; at++) found.push([map.keys[at], number(map.weights[at], map.strongest)]);
  } else {
    for (let key = 0; key < map.side; key++) found.push([key, cellOf(map, query, key)]);
  }
  return found.filter(([, weight]) => weight > 0 && weight >= threshold).sort((a, b) => b[1] - a[1]);
}
