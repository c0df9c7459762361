"""Mutations of valid files. All of them are functions of a random generator and the content of a file."""

import functools
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

#: Strings that readers have trouble with: separators, numbers, keywords, code, paths and addresses.
TEXTS = [
    *"\0\t\n\r\v\f\x1a\x1b\x1c\x7f\x85\u2028\ufeff\ufffd \"',;|[]{}<>&\\/:=#-_.0eE+a",
    "\r\n", '""', "nan", "inf", "-1", "1e999", "9" * 400, "null", "true", "N1-1", "N1", "U1", "label", "text", "O",
    "B-X", "-DOCSTART-", "é", "漢", "𝔘", "\u202e", "{}", "[]", '{"text": "a", "label": 1}', "a,b\n1,2\n",
    "!!python/object/apply:os.system [id]", "<script>alert(1)</script>", "&#x3c;", "]]>", "-->", "../../etc/passwd",
    "model: plain", "data: [a]", "=1+1", "hub:owner/name", "http://127.0.0.1:9/x", "\x1b]0;title\x07", "(a+)+$", "%s",
    "x" * 5000, "[PAD]", "[UNK]", "##a", "own.py", "own.OwnModel", "hostile--own.OwnModel", "/dev/zero",
]  # fmt: skip
#: The same as bytes, and bytes that are no UTF-8.
PIECES = [text.encode() for text in TEXTS] + [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xff\xfe",
    b"PK\x03\x04",
    b"\x1f\x8b",
]

#: Text that is put into JSON in place of a value, because `json.dumps` cannot write it.
RAW_JSON = [
    "NaN", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 40, "[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 100_000,
    '"\\ud800"', '{"a": 1, "a": [2]}', "", "'a'", '"\\u0000"', "1" + "0" * 308, "0.1e-400", "00", '"unclosed',
]  # fmt: skip
#: Values of the wrong type or size.
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 3, 7, 8, 16, 10**6, 2**31, 2**63, 10**20, -(2**40), 0.5, -0.0, 1e308, 1e-320,
    "", "a", [], {}, [[]], [None], {"": None}, [0, 1], [8, 8], ["a", 1], {"0": "x", "1": "y"}, {"a": {"a": {"a": []}}},
    [10**9] * 3, [[1]] * 50,
]  # fmt: skip
#: Keys with a meaning for transformers, tokenizers, safetensors or headwise.
KEYS = [
    "auto_map", "model_type", "architectures", "tokenizer_class", "trust_remote_code", "quantization_config", "dtype",
    "torch_dtype", "_name_or_path", "_attn_implementation", "num_hidden_layers", "hidden_size", "vocab_size",
    "headwise",
    "num_labels", "id2label", "pad_token_id", "layers", "heads", "head_dim", "hierarchy", "pair", "scheme",
    "max_tokens",
    "scheme_options", "__metadata__", "shape", "data_offsets", "added_tokens", "model", "normalizer", "pre_tokenizer",
    "post_processor", "decoder", "truncation", "padding", "vocab", "merges", "unk_token", "max_length", "labels",
    "label_type", "inputs", "data", "task", "storage", "name", "kind", "model_max_length", "extra_special_tokens",
    "transformers_version", "use_cache", "tie_word_embeddings", "is_decoder", "custom_pipelines", "chat_template",
    "position_embedding_type", "max_position_embeddings", "problem_type", "torchscript", "chunk_size_feed_forward",
    "peft_type", "base_model_name_or_path", "gguf_file", "__class__", "", "é",
]  # fmt: skip
#: Special values of such keys.
HOSTILE_VALUES: list[Any] = [
    {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoTokenizer": [None, "own.OwnTokenizer"]},
    {"AutoModelForSequenceClassification": "hostile--own.OwnModel"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "gptq", "bits": 4}, {"quant_method": 1},
    "bert", "gpt2", "t5", "mamba", "llama", "deberta-v2", "longformer", "own-model", "BertModel", "PreTrainedTokenizer",
    "BertTokenizer", "T5Tokenizer", "LlamaTokenizer", "float16", "float8_e4m3fn", "complex64", "eager",
    "flash_attention_2",
    "kernels-community/flash-attn", "headwise", "headwise-recommender", "headwise-translator", "distance-aware",
    "tener",
    {"type": "Regex", "pattern": {"Regex": "(a+)+$"}}, {"type": "Sequence", "pretokenizers": []}, {"Regex": "(a|a)*$"},
    {"type": "Replace", "pattern": {"Regex": "(.*)*x"}, "content": ""}, {"type": "Strip", "left": 1, "right": -1},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "ByteLevel"}, {"type": "Split"},
    {"type": "WordPiece"},
    {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5},
    {"strategy": {"Fixed": 2**40}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0,
     "pad_token": "x"},
]  # fmt: skip

_RAW_MARK = "\ue000raw{}\ue000"


def choose(random: Random, *mutations: Mutation) -> Mutation:
    """Return one of several mutations."""
    return random.choice(mutations)


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """Flip bits, or cut out, repeat, overwrite or insert some bytes."""
    result = bytearray(content)
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(result))
        end = min(len(result), start + random.choice([0, 1, 1, 2, 8, 64, 10**6]))
        piece = random.choice(PIECES) if random.random() < 0.6 else random.randbytes(random.randint(0, 8))
        match random.randrange(6):
            case 0:
                del result[start:end]
            case 1:
                result[start:end] = piece
            case 2:
                result[start:start] = piece
            case 3:
                result[start:start] = result[start:end]
            case 4 if start < len(result):
                result[start] ^= 1 << random.randrange(8)
            case _:
                result = result[: random.randint(0, len(result))]
    return bytes(result[:200_000])


def random_bytes(random: Random, content: bytes) -> bytes:
    """Return pieces or random bytes; the content is not used."""
    if random.random() < 0.2:
        return b""
    if random.random() < 0.6:
        return b"".join(random.choices(PIECES, k=random.randint(1, 30)))
    return random.randbytes(random.randint(1, 300))


def mutate_lines(random: Random, content: bytes) -> bytes:
    """Drop, repeat, shuffle, join or lengthen lines, or change their ends or the encoding of the whole file."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    match random.randrange(10):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[at]] * random.choice([1, 2, 2000])
        case 2:
            random.shuffle(lines)
        case 3:
            lines[at] = lines[at] * random.choice([2, 100, 20_000])
        case 4:
            lines[at] = random.choice([b"", b" ", b"\t", b"\r", b"\0", b'"', b'"""', b"#", b"\xef\xbb\xbf"]) + lines[at]
        case 5:
            return random.choice([b"\r", b"\r\n", b"\n\n", b"\x85", b"\n\r"]).join(lines)
        case 6:
            return b"\xef\xbb\xbf" * random.randint(1, 2) + content
        case 7:
            return content.decode().encode(random.choice(["utf-16", "utf-32", "utf-16-le", "utf-8-sig"]))
        case 8:
            fields = lines[at].split(separator := random.choice([b",", b"\t", b" ", b";"]))
            fields[random.randrange(len(fields))] = random.choice(PIECES)
            lines[at] = separator.join(fields * random.choice([1, 1, 1, 2, 3000]))
        case 9:
            lines[at] = mutate_bytes(random, lines[at])
    return b"\n".join(lines)


def mutate_text(random: Random, content: bytes) -> bytes:
    """Mutate a text file."""
    return choose(random, mutate_lines, mutate_lines, mutate_bytes, random_bytes)(random, content)


def iterate_nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key or index of every value of a JSON tree."""
    stack = [tree]
    while stack:
        node = stack.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            yield node, key
            stack.append(value)


def random_value(random: Random, raw: list[str] | None = None) -> Any:
    """Return a hostile value. Text that JSON cannot express is added to `raw`, and a mark of it is returned."""
    draw = random.random()
    if raw is not None and draw < 0.12:
        raw.append(random.choice(RAW_JSON))
        return _RAW_MARK.format(len(raw) - 1)
    if draw < 0.3:
        return random.choice(TEXTS)
    return deepcopy(random.choice(HOSTILE_VALUES if draw < 0.5 else VALUES))  # later mutations change it in place


def mutate_tree(random: Random, tree: Any, raw: list[str] | None = None) -> Any:
    """Replace, delete, add, rename, copy or nest some values of a JSON tree, in place where possible."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        nodes = list(iterate_nodes(tree))
        if not nodes or random.random() < 0.01:
            return random_value(random, raw)
        container, key = random.choice(nodes)
        value = container[key]
        match random.randrange(9):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[random.choice(KEYS)] = container.pop(key)
            case 2 if isinstance(container, dict):
                container[random.choice(KEYS)] = random_value(random, raw)
            case 3:
                other, other_key = random.choice(nodes)
                container[key] = json.loads(json.dumps(other[other_key]))
            case 4 if isinstance(value, bool | int | float):
                container[key] = random.choice([value + 1, value - 1, -value, value * 1000, str(value), [value], 2**31])
            case 5 if isinstance(value, str):
                at = random.randint(0, len(value))
                container[key] = value[:at] + random.choice(TEXTS) + value[at:]
            case 6:
                container[key] = [value] if random.random() < 0.5 else {random.choice(KEYS): value}
            case _:
                container[key] = random_value(random, raw)
    return tree


def write_json(tree: Any, raw: list[str]) -> bytes:
    """Return a tree as JSON, with the marks of raw text replaced."""
    text = json.dumps(tree, ensure_ascii=False)
    for number, replacement in enumerate(raw):
        text = text.replace(json.dumps(_RAW_MARK.format(number), ensure_ascii=False), replacement)
    return text.encode("utf-8", "surrogatepass")


def mutate_json_tree(random: Random, content: bytes) -> bytes:
    """Mutate the values of a JSON file."""
    raw: list[str] = []
    return write_json(mutate_tree(random, json.loads(content), raw), raw)


def mutate_json(random: Random, content: bytes) -> bytes:
    """Mutate a JSON file."""
    return choose(random, *[mutate_json_tree] * 6, mutate_bytes, random_bytes)(random, content)


def mutate_jsonl(random: Random, content: bytes) -> bytes:
    """Mutate one line of a JSON Lines file as JSON, or the whole file as text."""
    if random.random() < 0.5:
        return mutate_text(random, content)
    lines = content.splitlines()
    at = random.randrange(len(lines))
    lines[at] = mutate_json_tree(random, lines[at])
    return b"\n".join(lines)


#: Each list has nine times the one before, so the last one has 9⁹ items.
BILLION_LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]\n" for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)
#: YAML with tags, anchors, merge keys, several documents, odd scalars and deep nesting.
YAML_TEXTS = [
    "!!python/object/apply:os.system ['touch CODE_HAS_RUN']\n", "a: !!python/name:os.system\n", "--- a\n--- b\n",
    "a: &a [*a]\n", "a: &a {b: *a}\n", "<<: {seed: 3}\n", "<<: [*b]\n", "seed: !!int 'x'\n",
    "seed: 0x7fffffffffffffffff\n",
    "seed: 2024-99-99\n", "model: 2024-02-30 99:99:99\n", "epochs: .nan\n", "epochs: -.inf\n", "epochs: 1:60:99\n",
    "data: !!binary 'x'\n", "data: !!set {a, b}\n", "data: !!omap [a: 1]\n", "? [a, b]\n: c\n", "? {a: 1}\n: c\n",
    "\tseed: 1\n",
    "seed: 1\nseed: 2\n", "model: |\n  a\n  b\n", "%YAML 9.9\n---\na: 1\n", "seed: " + "9" * 5000 + "\n", "*unknown\n",
    "...\n",
    "data: " + "[" * 100_000 + "\n", "data: " + "[" * 400 + "]" * 400 + "\n", "{" * 3000, "- " * 5000 + "a\n",
    "null: 1\n",
    "1: 2\n", "true: x\n", "seed: '\\ud800'\n", 'model: "\\ud800"\n', 'model: "\\x1b[2J"\n', "x: &x a\ny: *x\n",
    "storage: 1\n",
    "storage: sqlite:////tmp/x.db\n", "storage: postgresql://user@127.0.0.1:9/x\n", "storage: mysql+x://\n",
    "name: [a]\n",
    "kind: search\n", "kind: {a: b}\n", "name: ''\n", "task: mind\n", "task: translation\n", "task: [mind]\n",
    BILLION_LAUGHS,
]  # fmt: skip


def mutate_yaml_tree(random: Random, content: bytes) -> bytes:
    """Mutate the values of a YAML file."""
    import yaml

    tree = mutate_tree(random, yaml.safe_load(content))
    return bytes(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False, encoding="utf-8"))


def insert_yaml(random: Random, content: bytes) -> bytes:
    """Insert hostile YAML between the lines of a YAML file, or replace the file by it."""
    piece = random.choice(YAML_TEXTS).encode()
    if random.random() < 0.3:
        return piece
    lines = content.splitlines(keepends=True)
    lines.insert(random.randint(0, len(lines)), piece)
    return b"".join(lines)


def mutate_yaml(random: Random, content: bytes) -> bytes:
    """Mutate a YAML file."""
    return choose(random, *[mutate_yaml_tree] * 3, insert_yaml, insert_yaml, mutate_text)(random, content)


def mutate_safetensors(random: Random, content: bytes) -> bytes:
    """Mutate the header of a safetensors file as JSON, or the length of the header, or any bytes."""
    if random.random() < 0.3:
        return mutate_bytes(random, content)
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    raw: list[str] = []
    if random.random() < 0.3:  # rename or drop a tensor
        name = random.choice([name for name in header if name != "__metadata__"])
        tensor = header.pop(name)
        if random.random() < 0.5:
            header[random.choice([name + ".x", name.upper(), random.choice(TEXTS), "weight"])] = tensor
    else:
        header = mutate_tree(random, header, raw)
    text = write_json(header, raw)
    length = len(text) if random.random() < 0.8 else random.choice([0, 1, size + 1, 2**31, 2**63, len(text) + 10**6])
    if random.random() < 0.1:
        data = mutate_bytes(random, data)
    return length.to_bytes(8, "little") + text + data


@functools.cache
def compress_with_end(content: bytes, end: bytes, count: int) -> bytes:
    """Return a gzipped file with `count` more bytes at its end: 1 MiB of them is compressed once and repeated."""
    text, piece = gzip.decompress(content), end * 2**20
    compressor = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    start = compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)
    repeated = compressor.compress(piece) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(text)
    for _ in range(count // len(piece)):
        checksum = zlib.crc32(piece, checksum)
    trailer = struct.pack("<LL", checksum, (len(text) + count) % 2**32)
    header = gzip.compress(b"")[:10]
    return header + start + repeated * (count // len(piece)) + compressor.flush() + trailer


def mutate_gzip(inner: Mutation) -> Mutation:
    """Return a mutation of a gzipped file: of its content, or of its compressed bytes."""

    def mutate(random: Random, content: bytes) -> bytes:
        match random.randrange(8):
            case 0 | 1:
                return mutate_bytes(random, content)
            case 2:
                return content + random.choice([content, b"\0" * 100, b"garbage", gzip.compress(b"")])
            case 3 if random.random() < 0.05:  # a small file that is large when decompressed
                return compress_with_end(
                    content, *random.choice([(b"\0", 2**27), (b"a", 2**27), (b'"', 2**27), (b"\n", 2**21)])
                )
            case _:
                return gzip.compress(inner(random, gzip.decompress(content)), 1)

    return mutate
