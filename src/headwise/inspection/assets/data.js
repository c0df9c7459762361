// The page's data. Maps are stored as chunks, one per layer, which are decompressed on demand.

const NUM_TOP_KEYS = 8;
const metadata = JSON.parse(document.getElementById("metadata").textContent);
const chunks = new Map();
const pageLoaded = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", resolve);
});

async function decodeChunk(name) {
  if (!document.getElementById(name)) await pageLoaded; // the chunk is further down in the file
  const element = document.getElementById(name), text = atob(element.textContent.trim()), bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  if (element.type !== "application/zlib") return bytes; // of the first view, without waiting
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function loadChunk(name) {
  if (!chunks.has(name)) chunks.set(name, decodeChunk(name));
  return chunks.get(name);
}

// The map of a head. Cell (i, j) is cells[i · numColumns + j]; byte b has the value (b / 255)² · cellMax. Rows are groups of
// querySize tokens, columns are groups of keySize tokens.
async function loadMap(text, model, layer, head) {
  const { num_groups: [numRows, numColumns], group_sizes: [querySize, keySize], tokens, models } = metadata.texts[text];
  const cells = await loadChunk(`cells-${text}-${model}-${layer}`), size = numRows * numColumns;
  const map = {
    numRows, numColumns, querySize, keySize,
    isGrouped: Math.max(querySize, keySize) > 1,
    cells: cells.subarray(head * size, (head + 1) * size),
    cellMax: models[model].cell_max[layer][head],
  };
  if (map.isGrouped) {
    const [keys, weights] = await Promise.all([
      loadChunk(`keys-${text}-${model}-${layer}`), loadChunk(`weights-${text}-${model}-${layer}`)]);
    const length = tokens.length * NUM_TOP_KEYS;
    map.topKeys = new Uint16Array(keys.buffer, keys.byteOffset + 2 * head * length, length);
    map.topWeights = weights.subarray(head * length, (head + 1) * length);
    map.topWeightMax = models[model].top_weight_max[layer][head];
  }
  return map;
}

const dequantize = (byte, maximum) => (byte / 255) ** 2 * maximum;
const cellWeight = (map, i, j) => dequantize(map.cells[i * map.numColumns + j], map.cellMax);
// The tokens that a text's queries attend to: the source for cross-attention, else the tokens themselves.
const keyTokens = (text) => text.key_tokens ?? text.tokens;

// The keys that a query attends to, [key, weight], in descending order; for long texts only the top keys.
function attendedKeys(map, query, threshold) {
  const entries = [];
  if (map.isGrouped) {
    for (let index = query * NUM_TOP_KEYS; index < (query + 1) * NUM_TOP_KEYS; index++) {
      entries.push([map.topKeys[index], dequantize(map.topWeights[index], map.topWeightMax)]);
    }
  } else {
    for (let key = 0; key < map.numColumns; key++) entries.push([key, cellWeight(map, query, key)]);
  }
  return entries.filter(([, weight]) => weight > 0 && weight >= threshold).sort((a, b) => b[1] - a[1]);
}
