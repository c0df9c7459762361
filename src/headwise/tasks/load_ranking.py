"""Loading of the user's own queries, documents and relevance judgments."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import labels
from headwise.tasks.arrow_cache import BadRows, invalid_rows
from headwise.tasks.columns import TEXT_NAMES
from headwise.tasks.find_splits import group_by_split, has_known_extension
from headwise.tasks.formats import Batch, format_names, parse_delimiter, read_batches
from headwise.tasks.ranking import CLASSES, Query, build_splits, describe_candidates, describe_missing
from headwise.tasks.splitting import DEV_FRACTION, TEST_FRACTION, stratified_split
from headwise.tasks.task import Examples, Task

logger = logging.getLogger(__name__)

#: Known names of columns, in the order of preference; upper and lower case are equal.
QUERY_ID_NAMES = ("query-id", "query_id", "queryid", "qid", "question_id")
DOCUMENT_ID_NAMES = ("corpus-id", "corpus_id", "document_id", "document-id", "doc_id", "docid", "pid")
QUERY_TEXT_NAMES = (*TEXT_NAMES, "query", "question", "claim", "title")
DOCUMENT_TEXT_NAMES = (*TEXT_NAMES, "passage", "abstract", "contents")
TITLE_NAMES = ("title",)
SCORE_NAMES = ("score", "relevance", "label", "rating")

#: The beginnings of file names in a directory, and the directory of relevance files.
PREFIXES = {"queries": ("queries",), "documents": ("corpus", "documents"), "relevance": ("qrels", "relevance")}

LAYOUT = (
    "queries.jsonl (_id, text), corpus.jsonl (_id, text, optionally title) and qrels/train.tsv, qrels/dev.tsv, "
    "qrels/test.tsv (query-id, corpus-id, score)"
)

Files = Path | str | Sequence[Path | str]


@dataclass
class Reader:
    """Reads the valid rows of files, and collects the others.

    Args:
        delimiter: The delimiter of CSV and TSV files; by default it is recognized.
    """

    delimiter: str | None = None
    bad_rows: BadRows = field(default_factory=BadRows)

    def read(
        self, files: Sequence[Path], roles: Mapping[str, Sequence[str]], parse: Callable[..., None], *optional: str
    ) -> None:
        """Call `parse` with the values of each row.

        Args:
            files: The files.
            roles: The known names of the column of each role.
            parse: Takes the values of the roles; raises a ValueError if they are invalid.
            optional: Roles whose column may be missing; their values are None then.

        Raises:
            UserError: A file is invalid, or a column is missing.
        """
        for path in files:
            columns: list[str | None] = []
            for batch in read_batches(path, delimiter=self.delimiter):
                columns = columns or [find_column(batch, names, role in optional) for role, names in roles.items()]
                self.bad_rows.total += len(batch.rows)
                empty = [None] * len(batch.rows)
                values = [empty if name is None else batch.columns.get(name, empty) for name in columns]
                for index, row in enumerate(zip(*values, strict=True)):
                    try:
                        parse(*row)
                    except ValueError as error:
                        self.bad_rows.add(batch.location(index), str(error))
            if not columns:
                raise UserError(f"{path}: the file has no rows")


def find_column(batch: Batch, names: Sequence[str], is_optional: bool) -> str | None:
    """Return the column with the first known name.

    Raises:
        UserError: There is none, and it is not optional.
    """
    by_lower_case = {name.strip().lower(): name for name in batch.columns}
    column = next((by_lower_case[name] for name in names if name in by_lower_case), None)
    if column is None and not is_optional:
        raise UserError(
            f"{batch.path}: expected a column {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}; "
            f"the columns are {format_names(batch.columns)}"
        )
    return column


def load_ranking(
    data: Path | str | None = None,
    *,
    queries: Files | None = None,
    documents: Files | None = None,
    relevance: Files | None = None,
    delimiter: str | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
) -> tuple[Task, Examples]:
    """Load a ranking task from queries, documents and relevance judgments.

    Files can be CSV, TSV, JSON Lines, Parquet or Excel, gzipped or not. All documents are kept in memory.

    Args:
        data: A directory in the layout of BEIR: `queries.jsonl`, `corpus.jsonl` and `qrels/train.tsv`, `dev.tsv`,
            `test.tsv`. Other formats, the names documents and relevance, and one relevance file are possible too.
        queries, documents, relevance: The files, instead of `data`. Relevance files are assigned to splits by their
            names; the queries of a single file are split 80/10/10.
        delimiter: Separates the columns of CSV and TSV files; by default it is recognized.
        skip_bad_rows: Skip invalid rows, with a warning; by default they are an error.
        seed: The seed of random splits and sampled candidates.

    Raises:
        UserError: A file does not exist or is invalid.
    """
    if data is not None:
        if queries is not None or documents is not None or relevance is not None:
            raise UserError("--data cannot be combined with --queries, --documents and --relevance")
        files = find_in_directory(Path(data), alternative=", or --queries, --documents and --relevance")
    else:
        given = {"queries": queries, "documents": documents, "relevance": relevance}
        missing = [f"--{name}" for name, paths in given.items() if not paths]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(
                f"{' and '.join(missing)} {verb} required: a ranking needs queries, documents and relevance"
            )
        files = {name: to_paths(paths) for name, paths in given.items() if paths}
    reader, corpus, texts, judgments = read_files(files, delimiter, skip_bad_rows)
    split_queries, method = complete_splits(judgments, texts, seed, files["relevance"])
    splits = build_splits(split_queries, corpus, seed)
    name = Path(data).resolve().name if data is not None else files["queries"][0].name.split(".")[0]
    origin = ", ".join(path.name for paths in files.values() for path in paths)
    counts = "/".join(f"{len(part):,}" for part in split_queries.values())
    recipe = (
        f"{origin}. {'/'.join(split_queries)} {counts} queries: {method}. {describe_candidates(corpus)} "
        f"{describe_missing(splits)}"
    )
    if reader.bad_rows.count:
        recipe += f" {reader.bad_rows.count:,} invalid rows skipped."
    duplicates = describe_overlap(split_queries)
    recipe += f" {duplicates}." if duplicates else ""
    task = Task(name=name, label_type="ranking", about="own data", source=origin, pair=True)
    return task, Examples(splits, CLASSES, recipe, ordered_by="BM25", duplicates=duplicates)


def load_ranking_split(data: Path, *, delimiter: str | None = None, skip_bad_rows: bool = False) -> Dataset:
    """Load the queries of a directory that a model is evaluated on, with their candidates.

    These are the queries of test, of dev if there is no test, or of the only relevance file.

    Args:
        data: A directory in the layout of BEIR; see `load_ranking`.
        delimiter: Separates the columns of CSV and TSV files; by default it is recognized.
        skip_bad_rows: Skip invalid rows, with a warning; by default they are an error.

    Raises:
        UserError: A file does not exist or is invalid, or no candidate is relevant.
    """
    _, corpus, texts, judgments = read_files(find_in_directory(data), delimiter, skip_bad_rows)
    split = next(name for name in ("test", "dev", "all", "train") if name in judgments)
    queries = [Query(*texts[name], frozenset(documents)) for name, documents in judgments[split].items()]
    rows = build_splits({"data": queries}, corpus, seed=0)["data"]
    if not any(rows["label"]):
        raise UserError(f"{data}: no query of {split} has a relevant document among its candidates")
    logger.info("evaluating %s queries of %s%s", f"{len(queries):,}", data, "" if split == "all" else f", {split}")
    return rows


def load_candidates(
    queries: Path, documents: Sequence[Path], *, text: str | None = None, delimiter: str | None = None
) -> tuple[Dataset, int]:
    """Load queries without judgments, with their candidates among the documents.

    Args:
        queries: The file of queries. Without a column of ids, their ids are their numbers, from 1 on.
        documents: The files of documents.
        text: The column with the texts of the queries; by default it is recognized.
        delimiter: Separates the columns of CSV and TSV files; by default it is recognized.

    Returns:
        The candidates of each query, best first, and the number of queries without a text, which have none.

    Raises:
        UserError: A file does not exist or is invalid, or no query has a text.
    """
    reader = Reader(None if delimiter is None else parse_delimiter(delimiter))
    corpus = read_documents(reader, documents)
    names: list[Any] = []
    texts: list[str] = []

    def parse(name: Any, value: Any) -> None:
        names.append(name)
        texts.append("" if value is None else str(value).strip())

    text_names = QUERY_TEXT_NAMES if text is None else (text.strip().lower(),)
    reader.read([queries], {"id": ("_id", "id", *QUERY_ID_NAMES), "text": text_names}, parse, "id")
    if reader.bad_rows.count:
        raise invalid_rows(reader.bad_rows, has_option=False)
    if not any(texts):
        raise UserError(f"{queries}: no query has a text")
    ids = number_queries(queries, names)
    found = [Query(row, name, text, frozenset()) for row, (name, text) in enumerate(zip(ids, texts, strict=True))]
    rows = build_splits({"data": [query for query in found if query.text]}, corpus, seed=0)["data"]
    return rows, texts.count("")


def number_queries(path: Path, names: Sequence[Any]) -> list[str]:
    """Return the ids of queries, or their numbers if none has an id.

    Raises:
        UserError: Some queries have no id, or an id is repeated.
    """
    if all(name is None for name in names):
        return [str(number) for number in range(1, len(names) + 1)]
    missing = sum(name is None or not str(name).strip() for name in names)
    if missing:
        raise UserError(f"{path}: {missing:,} of {len(names):,} queries have no id; give all of them an id, or none")
    ids = [parse_id(name, "query") for name in names]
    repeated = next((name for name, count in Counter(ids).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"{path}: query {repeated!r} is repeated")
    return ids


def read_files(
    files: Mapping[str, Sequence[Path]], delimiter: str | None, skip_bad_rows: bool
) -> tuple[Reader, dict[str, str], dict[str, tuple[int, str, str]], dict[str, dict[str, set[str]]]]:
    """Read the files of a ranking.

    Returns:
        The reader, the text of each document, the row, id and text of each query, and the relevant documents of each
        query for train, dev and test or for "all".
    """
    reader = Reader(None if delimiter is None else parse_delimiter(delimiter))
    corpus = read_documents(reader, files["documents"])
    texts = read_queries(reader, files["queries"])
    judgments = {
        split: read_relevance(reader, paths, texts, corpus)
        for split, paths in (group_by_split(files["relevance"]) or {"all": files["relevance"]}).items()
    }
    if reader.bad_rows.count:
        if not skip_bad_rows:
            raise invalid_rows(reader.bad_rows, has_option=True)
        logger.warning("skipped: %s", reader.bad_rows)
    return reader, corpus, texts, judgments


def to_paths(files: Files) -> list[Path]:
    """Return one or several files as paths."""
    return [Path(path) for path in ([files] if isinstance(files, Path | str) else files)]


def find_in_directory(directory: Path, *, alternative: str = "") -> dict[str, list[Path]]:
    """Find the files of a ranking in a directory.

    Args:
        directory: The directory.
        alternative: Other options to name the files, for a message.

    Raises:
        UserError: A file is missing.
    """
    if not directory.is_dir():
        reason = "a file" if directory.exists() else "no such directory"
        raise UserError(f"{directory}: {reason}; a ranking needs a directory with {LAYOUT}{alternative}")
    paths = sorted(path for path in directory.iterdir() if path.is_file() and has_known_extension(path))
    files = {role: [path for path in paths if path.name.startswith(prefixes)] for role, prefixes in PREFIXES.items()}
    for name in PREFIXES["relevance"]:
        if (directory / name).is_dir():
            inner = sorted(path for path in (directory / name).iterdir() if path.is_file())
            files["relevance"] += [path for path in inner if has_known_extension(path)]
    missing = [" or ".join(PREFIXES[role]) for role, found in files.items() if not found]
    if missing:
        found = ", ".join(path.name for path in paths[:6]) or "no data files"
        raise UserError(
            f"{directory}: no file whose name begins with {'; '.join(missing)}. A ranking needs a directory with "
            f"{LAYOUT}, or the same as CSV or Parquet{alternative}. The directory has {found}"
        )
    return files


def read_documents(reader: Reader, files: Sequence[Path]) -> dict[str, str]:
    """Return the text of each document, with its title in front if it has one."""
    corpus: dict[str, str] = {}

    def parse(name: Any, text: Any, title: Any) -> None:
        name = parse_id(name, "document")
        if name in corpus:
            raise ValueError(f"document {name!r} is repeated")
        parts = ["" if part is None else str(part).strip() for part in (title, text)]
        corpus[name] = labels.parse_text(" ".join(part for part in parts if part))

    roles = {"id": ("_id", "id", *DOCUMENT_ID_NAMES), "text": DOCUMENT_TEXT_NAMES, "title": TITLE_NAMES}
    reader.read(files, roles, parse, "title")
    return corpus


def read_queries(reader: Reader, files: Sequence[Path]) -> dict[str, tuple[int, str, str]]:
    """Return the row, id and text of each query."""
    queries: dict[str, tuple[int, str, str]] = {}
    row = -1

    def parse(name: Any, text: Any) -> None:
        nonlocal row
        row += 1
        name = parse_id(name, "query")
        if name in queries:
            raise ValueError(f"query {name!r} is repeated")
        queries[name] = (row, name, labels.parse_text(text))

    reader.read(files, {"id": ("_id", "id", *QUERY_ID_NAMES), "text": QUERY_TEXT_NAMES}, parse)
    return queries


def read_relevance(
    reader: Reader, files: Sequence[Path], queries: Mapping[str, Any], corpus: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return the relevant documents of each query: those with a score above 0."""
    relevant: dict[str, set[str]] = {}
    judged: dict[tuple[str, str], bool] = {}

    def parse(query: Any, document: Any, score: Any) -> None:
        query, document = parse_id(query, "query"), parse_id(document, "document")
        if query not in queries:
            raise ValueError(f"query {query!r} is in no file of queries")
        if document not in corpus:
            raise ValueError(f"document {document!r} is in no file of documents")
        is_relevant = score is None or labels.parse_rating(score) > 0
        if judged.setdefault((query, document), is_relevant) is not is_relevant:
            names = ("relevant", "not relevant") if is_relevant else ("not relevant", "relevant")
            raise ValueError(
                f"document {document!r} is {names[0]} to query {query!r} here, and {names[1]} in an earlier row"
            )
        documents = relevant.setdefault(query, set())
        if is_relevant:
            documents.add(document)

    roles = {"query": (*QUERY_ID_NAMES, "query"), "document": (*DOCUMENT_ID_NAMES, "document"), "score": SCORE_NAMES}
    reader.read(files, roles, parse, "score")
    return relevant


def parse_id(value: Any, role: str) -> str:
    """Return an id as text: 1, 1.0 and "1" are equal.

    Raises:
        ValueError: It is missing.
    """
    try:
        return labels.parse_label(value)
    except ValueError:
        raise ValueError(f"no id of the {role}") from None


def complete_splits(
    judgments: Mapping[str, Mapping[str, set[str]]],
    texts: Mapping[str, tuple[int, str, str]],
    seed: int,
    files: Sequence[Path],
) -> tuple[dict[str, list[Query]], str]:
    """Return the queries of train, dev and test, and a description of the splits.

    Args:
        judgments: The relevant documents of each query, for train, dev and test or for "all".
        texts: The row, id and text of each query.
        seed: The seed of the splits.
        files: The relevance files, for messages.
    """
    queries = {
        split: [Query(*texts[name], frozenset(documents)) for name, documents in found.items()]
        for split, found in judgments.items()
    }
    method = "split as given"
    origin = ", ".join(map(str, files))
    if "all" in queries:
        queries, method = draw(queries["all"], ("dev", "test"), seed, origin), f"split 80/10/10, seed {seed}"
    elif "train" not in queries:
        raise UserError(f"{origin}: no relevance file for training; name the files train, dev and test")
    elif "dev" not in queries:
        queries |= draw(queries["train"], ("dev",), seed, origin)
        method = f"dev is {100 * DEV_FRACTION:g}% of train, seed {seed}"
    queries["train"] = [query for query in queries["train"] if query.relevant]
    if not queries["train"]:
        raise UserError(f"{origin}: no query of train has a relevant document (a score above 0)")
    return {split: queries[split] for split in ("train", "dev", "test") if split in queries}, method


def draw(queries: Sequence[Query], names: Sequence[str], seed: int, origin: str) -> dict[str, list[Query]]:
    """Draw splits from queries; the remaining ones become train.

    Raises:
        UserError: There are too few queries.
    """
    fractions = {"dev": DEV_FRACTION, "test": TEST_FRACTION}
    sizes = {name: max(1, round(fractions[name] * len(queries))) for name in names}
    if sum(sizes.values()) >= len(queries):
        raise UserError(f"{origin}: {len(queries)} queries are too few to draw {' and '.join(names)} from")
    indices = stratified_split(np.zeros(len(queries)), sizes, seed)
    splits = {"train" if name == "rest" else name: chosen for name, chosen in indices.items()}
    return {name: [queries[index] for index in chosen] for name, chosen in splits.items()}


def describe_overlap(queries: Mapping[str, Sequence[Query]]) -> str:
    """Describe how many queries of dev and test have the text of a query in train; empty if there are none."""
    train = {query.text for query in queries["train"]}
    counts = {split: sum(query.text in train for query in queries.get(split, ())) for split in ("test", "dev")}
    return ", ".join(f"{count:,} of {split}'s queries are in train too" for split, count in counts.items() if count)
