"""Inspection of models: finished runs, and Hugging Face models in a directory or on the hub."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from headwise.errors import UserError
from headwise.inspection.head_statistics import HeadStatistics, compute_head_statistics
from headwise.inspection.inspected_model import InspectedModel, Texts
from headwise.inspection.output_dir import (
    FIGURES,
    PAGE,
    find_schemes,
    plot_learned_parameters,
    write_figures,
    write_inspection,
)
from headwise.inspection.viewer import Viewer, build_viewer, check_model_names, truncate_label
from headwise.integrations import from_pretrained
from headwise.locks import LOCK_FILE, lock_output
from headwise.models import FirstToken
from headwise.models.first_token import NAME as FIRST_TOKEN
from headwise.tasks.columns import LABEL_NAMES, Columns, choose_columns, find_known_column
from headwise.tasks.formats import Batch, read_batches
from headwise.training.core import run_dir
from headwise.training.core.environment import get_device
from headwise.training.core.model_names import is_directory_name
from headwise.training.core.pretrained import (
    is_available,
    load_pretrained,
    loading_errors,
    max_input_length,
    remote_code,
)
from headwise.training.registry import get_task_type, load_config
from headwise.training.text.predict import get_column, to_text

#: Number of rows of a file that are shown by default.
DEFAULT_ROWS = 4
#: Largest number of rows that can be shown.
MAX_ROWS = 100


@dataclass(frozen=True)
class InspectionResult:
    """The result of an inspection.

    Args:
        viewer: the contents of the page; None if there were no texts.
        page: the page, or without texts the directory of figures.
    """

    viewer: Viewer | None
    page: Path


def inspect(
    models: Sequence[str],
    out: Path,
    *,
    texts: Sequence[Texts] = (),
    data: Path | None = None,
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    force: bool = False,
    trust_remote_code: bool = False,
) -> InspectionResult:
    """Write a page about the attention of models, optionally with figures and tables.

    Without `texts` and `data`, the distance weights that heads have learned are plotted.

    Args:
        models: run directories, or directories or names of Hugging Face models; up to four with `texts` or `data`.
        out: the page (`….html`), or a directory for the page, figures and tables.
        texts: the texts to show.
        data: a file of texts. Statistics are computed over all rows, and some rows are shown.
        columns: the text column and the second text column of the file; detected by default.
        rows: the rows to show, counted from 1, such as `3` and `7-9`; by default the first four.
        force: replace existing output.
        trust_remote_code: run the Python code of the models' directories, if they have some.

    Raises:
        UserError: the models, the texts or the output are invalid.
    """
    if texts and data is not None:
        raise UserError("--text and --data cannot be combined")
    if data is None and (rows or columns):
        raise UserError("--rows and --columns require --data")
    if len(models) != len(set(models)):
        raise UserError(f"a model is named twice: {', '.join(models)}")
    names, row_numbers = short_names(models), parse_rows(rows)
    check_output(out, force)
    if texts or data is not None:
        check_model_names(names)
    with lock_output(out, is_directory=out.suffix != ".html"), remote_code(trust_remote_code):
        return write_output(models, names, out, texts, data, columns, row_numbers)


def write_output(
    models: Sequence[str],
    names: Sequence[str],
    out: Path,
    texts: Sequence[Texts],
    data: Path | None,
    columns: Sequence[str],
    row_numbers: Sequence[int],
) -> InspectionResult:
    """Load the models and write the page, or the directory with the page, figures and tables."""
    if not texts and data is None:
        return plot_learned(models, names, out)
    inspected = [open_model(path, name) for path, name in zip(models, names, strict=True)]
    with loading_errors(", ".join(models), "cannot be run; the files are damaged or do not belong together"):
        viewer = build_viewer(inspected, texts) if data is None else inspect_file(inspected, data, columns, row_numbers)
    if out.suffix == ".html":
        with run_dir.atomic_path(out) as path:
            viewer.write(path)
        return InspectionResult(viewer, out)
    with run_dir.staging_dir(out) as stage:
        write_inspection(viewer, inspected, stage)
    return InspectionResult(viewer, out / PAGE)


def open_model(path: str, name: str | None = None) -> InspectedModel:
    """Load a finished run, or a Hugging Face model from a directory or the hub.

    Raises:
        UserError: there is no such model, or it cannot be loaded.
    """
    name = name or Path(path).name
    if (Path(path) / run_dir.CONFIG).is_file():
        return get_task_type(load_config(Path(path, run_dir.CONFIG)).task).pipeline.open_inspected(Path(path), name)
    if not Path(path).exists() and is_directory_name(path):
        raise UserError(f"{path}: no such directory; expected a headwise run or a Hugging Face model")
    available = is_available(path)
    options = {} if available else {"local_files_only": True}  # else the hub's client would retry for half a minute
    message = "neither a headwise run nor a Hugging Face model that can be loaded"
    with loading_errors(path, message if available else f"{message}, and the hub cannot be reached"):
        config = load_pretrained(AutoConfig, path, **options)
        auto_class = get_auto_class(next(iter(config.architectures or []), ""))
        loader = partial(from_pretrained, auto_class=auto_class)
        model: Any = load_pretrained(loader, path, complete=True, use_safetensors=True, **options)
        tokenizer = load_pretrained(AutoTokenizer, path, **options)
    max_length = max_input_length(model, tokenizer)
    return InspectedModel(name=name, model=model.to(get_device()).eval(), tokenizer=tokenizer, max_length=max_length)


def get_auto_class(architecture: str) -> Any:
    """Return the class that loads a model together with its classification head, if it has one."""
    if architecture.endswith(FIRST_TOKEN):
        return FirstToken
    if architecture.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    if architecture.endswith("ForTokenClassification"):
        return AutoModelForTokenClassification
    return AutoModel


def plot_learned(paths: Sequence[str], names: Sequence[str], out: Path) -> InspectionResult:
    """Plot the distance weights that heads have learned. Runs that differ only in their seed are combined.

    Raises:
        UserError: no head has a distance scheme, or the output is a page.
    """
    if out.suffix == ".html":
        raise UserError("a page requires texts: add --text TEXT or --data FILE")
    groups: dict[Any, list[InspectedModel]] = {}
    for path, name in zip(paths, names, strict=True):
        groups.setdefault(config_without_seed(path), []).append(open_model(path, name))
    if not any(find_schemes(model) for group in groups.values() for model in group):
        raise UserError(f"no head of {', '.join(names)} has learned distances: add --text TEXT or --data FILE")
    with run_dir.staging_dir(out) as stage:
        models = {
            group[0].name + (f" ({len(group)} seeds)" if len(group) > 1 else ""): group for group in groups.values()
        }
        write_figures(plot_learned_parameters(models), stage)
    return InspectionResult(None, out / FIGURES)


def config_without_seed(path: str) -> str:
    """Return a run's configuration except for its seed; for other models the path."""
    config_path = Path(path, run_dir.CONFIG)
    return str(replace(load_config(config_path), seed=0)) if config_path.is_file() else path


def check_output(out: Path, force: bool) -> None:
    """Check that the output can be written.

    Raises:
        UserError: it exists and is not replaced.
    """
    if out.suffix == ".html":
        if out.is_dir():
            raise UserError(f"--out {out}: a directory of that name exists")
        if out.exists() and not force:
            raise UserError(f"--out {out}: already exists; --force replaces it")
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: a file of that name exists; the name of a page ends with .html")
    if out.is_dir() and any(path.name != LOCK_FILE for path in out.iterdir()):
        if not (out / PAGE).is_file() and not (out / FIGURES).is_dir():
            raise UserError(f"--out {out}: contains files not written by headwise inspect; choose another directory")
        if not force:
            raise UserError(f"--out {out}: already contains a page; --force replaces it")


def short_names(models: Sequence[str]) -> list[str]:
    """Return the last parts of each path, as many as are needed for distinct names.

    The runs of a study are named by their method and seed.

    >>> short_names(["runs/plain", "runs/guided/"]), short_names(["study/a/seed-0", "study/b/seed-1"])
    (['plain', 'guided'], ['a/seed-0', 'b/seed-1'])
    """
    paths = [Path(model).parts or (model,) for model in models]
    has_seeds = any(parts[-1].startswith("seed-") for parts in paths) and len({parts[:-1] for parts in paths}) > 1
    for num_parts in range(2 if has_seeds else 1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-num_parts:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return list(models)


def inspect_file(
    models: Sequence[InspectedModel], data: Path, columns: Sequence[str], row_numbers: Sequence[int]
) -> Viewer:
    """Show some rows of a file, with statistics over all of it."""
    if len(columns) > 2:
        raise UserError(f"--columns takes one or two columns, got {len(columns)}")
    rows = choose_rows(data, columns, row_numbers)
    viewer = build_viewer(
        models, [row.texts for row in rows], titles=[row.title for row in rows], labels=[row.label for row in rows]
    )
    statistics: list[HeadStatistics] = []
    for model in models:
        with tqdm(desc=model.name, unit=" rows", leave=False, delay=1) as bar:
            texts = with_progress((row.texts for row in read_rows(data, columns)), bar)
            statistics.append(compute_head_statistics(model, texts))
    return Viewer(viewer.title, viewer.names, viewer.examples, tuple(statistics))


def with_progress(rows: Iterator[Texts], bar: Any) -> Iterator[Texts]:
    for row in rows:
        yield row
        bar.update()


@dataclass(frozen=True)
class Row:
    """A row of a file; its number counts from 1."""

    number: int
    texts: Texts
    label: str | None

    @property
    def title(self) -> str:
        return f"row {self.number}: {truncate_label(' / '.join(self.texts))}"


def read_rows(data: Path, column_names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        UserError: the file is empty or invalid, or a column is missing.
    """
    columns: Columns | None = None
    for batch in read_batches(data):
        columns = columns or detect_columns(batch, column_names)
        names = [columns.text] if columns.pair is None else [columns.text, columns.pair]
        labels = [None] * len(batch.rows) if columns.label is None else get_column(batch, columns.label)
        for number, label, *texts in zip(batch.rows, labels, *(get_column(batch, name) for name in names), strict=True):
            row_texts = tuple(to_text(" ".join(map(str, text)) if isinstance(text, list) else text) for text in texts)
            yield Row(number + 1, row_texts, None if label is None else str(label))
    if columns is None:
        raise UserError(f"{data}: contains no rows")


def detect_columns(batch: Batch, names: Sequence[str]) -> Columns:
    """Return the named columns, or detect them. The label is omitted if it is ambiguous."""
    text, pair = [*names, None, None][:2]
    try:
        columns = choose_columns(batch, text=text, pair=pair, labelled=False)
    except UserError as error:
        raise UserError(re.sub(r"--(?:text|pair|label)\b", "--columns", str(error))) from None
    others = [name for name in batch.columns if name not in (columns.text, columns.pair)]
    try:
        label = find_known_column(batch, others, LABEL_NAMES, "label")
    except UserError:
        label = None
    return Columns(columns.text, columns.pair, label)


def choose_rows(data: Path, columns: Sequence[str], row_numbers: Sequence[int]) -> list[Row]:
    """Return the rows to show, in the order of the file.

    Raises:
        UserError: a row does not exist or has no text.
    """
    if not row_numbers:
        first = list(islice((row for row in read_rows(data, columns) if all(row.texts)), DEFAULT_ROWS))
        if not first:
            raise UserError(f"{data}: no row has a text")
        return first
    rows = [row for row in islice(read_rows(data, columns), max(row_numbers)) if row.number in set(row_numbers)]
    missing = sorted(set(row_numbers) - {row.number for row in rows})
    if missing:
        raise UserError(f"--rows {missing[0]}: {data} has no such row")
    empty = next((row for row in rows if not all(row.texts)), None)
    if empty is not None:
        raise UserError(f"--rows {empty.number}: this row of {data} has no text")
    return rows


def parse_rows(rows: Sequence[str]) -> list[int]:
    """Parse the `--rows` option.

    >>> parse_rows(["3", "7-9"])
    [3, 7, 8, 9]
    """
    ranges: list[range] = []
    for option in rows:
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", option)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise UserError(f"--rows takes numbers from 1 and ranges, such as 3 or 7-9; got {option!r}")
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    num_rows = sum(map(len, ranges))
    if num_rows > MAX_ROWS:
        raise UserError(f"--rows: at most {MAX_ROWS} rows can be shown, got {num_rows:,}")
    return [number for numbers in ranges for number in numbers]
