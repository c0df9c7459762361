"""Looking into models: runs of ours, and any Hugging Face model in a folder or on the hub."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
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
from headwise.inspection.viewer import Viewer, build_viewer, check_examples, truncate_label
from headwise.integrations import from_pretrained
from headwise.models import FirstToken
from headwise.models.first_token import NAME as FIRST_TOKEN
from headwise.tasks.columns import LABEL_NAMES, Columns, choose_columns, find_known_column
from headwise.tasks.formats import Batch, read_batches
from headwise.training.core import run_dir
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.pretrained import loading_errors, max_input_length
from headwise.training.registry import get_task_type, load_config
from headwise.training.text.predict import get_column, to_text

SHOWN = 4  # rows of a file, if nobody says which


def open_subject(path: str, name: str | None = None) -> InspectedModel:
    """A model to look into: a run's folder, or a Hugging Face model's folder or name.

    Raises:
        UserError: there is no such model, or it cannot be loaded.
    """
    name = name or Path(path).name
    if (Path(path) / run_dir.CONFIG).is_file():
        kind = get_task_type(load_config(Path(path, run_dir.CONFIG)).task)
        found: InspectedModel = kind.pipeline.open_inspected(Path(path), name)
        return found
    with loading_errors(path, "no run of headwise, and no Hugging Face model that can be loaded"):
        config = AutoConfig.from_pretrained(path)
        auto = auto_class(next(iter(config.architectures or []), ""))
        model: Any = from_pretrained(path, auto, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return InspectedModel(
        name=name, model=model.to(device).eval(), tokenizer=tokenizer, max_length=max_input_length(model, tokenizer)
    )


def auto_class(architecture: str) -> Any:
    """With its classifier, if the model was saved with one."""
    if architecture.endswith(FIRST_TOKEN):
        return FirstToken
    if architecture.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    if architecture.endswith("ForTokenClassification"):
        return AutoModelForTokenClassification
    return AutoModel


@dataclass(frozen=True)
class Inspected:
    """What was looked into, and where the page is, or the figures where there was no text to make a page of."""

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
) -> Inspected:
    """Write a page, or a folder of a page, figures and tables, about what models' heads look at.

    Args:
        models: up to four, each a run's folder, or a Hugging Face model's folder or name; more without texts and data.
        out: a page to write, `….html`, or a folder.
        texts: what to look at, or
        data: a file of texts: statistics are about all of it, and some rows are shown. With neither, what heads have
            learned about distance is drawn, of runs of every kind.
        columns: the file's column of the text, and of the second text; by default found by their names.
        rows: which rows are shown, from 1, such as `3` and `7-9`; by default the first four.
        force: whether to replace what is there.

    Raises:
        UserError: models, texts or `out` are not what they should be; the message says which.
    """
    if texts and data is not None:
        raise UserError("say what to look at: --text TEXT, or --data FILE, and not both")
    if data is None and (rows or columns):
        raise UserError("--rows and --columns are about a file: they go with --data")
    if len(models) != len(set(models)):
        raise UserError(f"the same model is named twice: {', '.join(models)}")
    names, wanted = short_names(models), numbers(rows)
    check_out(out, force)
    if not texts and data is None:
        return learned(models, names, out)
    check_examples(names)
    subjects = [open_subject(path, name) for path, name in zip(models, names, strict=True)]
    with quiet_libraries():
        viewer = build_viewer(subjects, texts) if data is None else of_file(subjects, data, columns, wanted)
    if out.suffix == ".html":
        with run_dir.atomic_path(out) as part:
            viewer.write(part)
        return Inspected(viewer, out)
    with run_dir.staging_dir(out) as stage:
        write_inspection(viewer, subjects, stage)
    return Inspected(viewer, out / PAGE)


def learned(paths: Sequence[str], names: Sequence[str], out: Path) -> Inspected:
    """Figures of what heads have learned about distance, which need no text. Runs that differ in their seed are one.

    Raises:
        UserError: no head of them has.
    """
    if out.suffix == ".html":
        raise UserError("a page is about texts: say --text TEXT or --data FILE")
    alike: dict[Any, list[InspectedModel]] = {}
    for path, name in zip(paths, names, strict=True):
        alike.setdefault(but_for_the_seed(path), []).append(open_subject(path, name))
    if not any(find_schemes(subject) for runs in alike.values() for subject in runs):
        raise UserError(f"no head of {', '.join(names)} has learned a distance: say what to look at, --text or --data")
    with run_dir.staging_dir(out) as stage:
        models = {runs[0].name + (f" ({len(runs)} seeds)" if len(runs) > 1 else ""): runs for runs in alike.values()}
        write_figures(plot_learned_parameters(models), stage)
    return Inspected(None, out / FIGURES)


def but_for_the_seed(path: str) -> str:
    """What is the same of two runs if only their seeds differ."""
    file = Path(path, run_dir.CONFIG)
    return str(replace(load_config(file), seed=0)) if file.is_file() else path


def check_out(out: Path, force: bool) -> None:
    if out.suffix == ".html":
        if out.is_dir():
            raise UserError(f"--out {out}: a folder of that name is in the way")
        if out.exists() and not force:
            raise UserError(f"--out {out}: is there already; --force replaces it")
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: a file of that name is in the way; a page's name ends with .html")
    if out.is_dir() and any(out.iterdir()):
        if not (out / PAGE).is_file() and not (out / FIGURES).is_dir():
            raise UserError(f"--out {out}: holds files that headwise inspect did not write; name a new folder")
        if not force:
            raise UserError(f"--out {out}: holds a page already; --force replaces it")


def short_names(models: Sequence[str]) -> list[str]:
    """Folders' own names; where these are the same, the whole of them.

    >>> short_names(["runs/plain", "runs/guided/"]), short_names(["a/0", "b/0"])
    (['plain', 'guided'], ['a/0', 'b/0'])
    """
    names = [Path(model).name or model for model in models]
    return names if len(set(names)) == len(names) else list(models)


def of_file(subjects: Sequence[InspectedModel], data: Path, columns: Sequence[str], wanted: Sequence[int]) -> Viewer:
    """Some rows of a file, and statistics about all of it."""
    if len(columns) > 2:
        raise UserError(f"--columns takes the text's column, and the second text's; got {len(columns)}")
    shown = chosen_rows(data, columns, wanted)
    found: list[HeadStatistics] = []
    texts, labels = [row.texts for row in shown], [row.label for row in shown]
    viewer = build_viewer(subjects, texts, titles=[row.title for row in shown], labels=labels)
    for subject in subjects:
        with tqdm(desc=subject.name, unit=" rows", leave=False, delay=1) as bar:
            found.append(compute_head_statistics(subject, counted(bar, (row.texts for row in rows_of(data, columns)))))
    return Viewer(viewer.title, viewer.names, viewer.examples, tuple(found))


def counted(bar: Any, rows: Iterator[Texts]) -> Iterator[Texts]:
    for row in rows:
        yield row
        bar.update()


@dataclass(frozen=True)
class Row:
    """A row of a file, its number from 1."""

    number: int
    texts: Texts
    label: str | None

    @property
    def title(self) -> str:
        return f"row {self.number}: {truncate_label(' / '.join(self.texts))}"


def rows_of(data: Path, columns: Sequence[str]) -> Iterator[Row]:
    found: Columns | None = None
    for batch in read_batches(data):
        found = found or columns_of(batch, columns)
        names = [found.text] if found.pair is None else [found.text, found.pair]
        labels = [None] * len(batch.rows) if found.label is None else get_column(batch, found.label)
        for number, label, *texts in zip(batch.rows, labels, *(get_column(batch, name) for name in names), strict=True):
            words = tuple(to_text(" ".join(map(str, text)) if isinstance(text, list) else text) for text in texts)
            yield Row(number + 1, words, None if label is None else str(label))
    if found is None:
        raise UserError(f"{data}: holds no rows")


def columns_of(first: Batch, given: Sequence[str]) -> Columns:
    """The columns that are named, or else found by their names; a label only where there is no doubt."""
    text, pair = [*given, None, None][:2]
    try:
        found = choose_columns(first, text=text, pair=pair, labelled=False)
    except UserError as mistake:
        raise UserError(re.sub(r"Say --\w+ NAME", "Say --columns NAME", str(mistake))) from None
    try:
        label = find_known_column(
            first, [name for name in first.columns if name not in (found.text, found.pair)], LABEL_NAMES, "label"
        )
    except UserError:
        label = None
    return Columns(found.text, found.pair, label)


def chosen_rows(data: Path, columns: Sequence[str], wanted: Sequence[int]) -> list[Row]:
    """The rows to show, in the order in which they stand in the file.

    Raises:
        UserError: a row that is not there, or that has no text.
    """
    if not wanted:
        shown = list(islice((row for row in rows_of(data, columns) if all(row.texts)), SHOWN))
        if not shown:
            raise UserError(f"{data}: no row has a text")
        return shown
    last = max(wanted)
    found = [row for row in islice(rows_of(data, columns), last) if row.number in set(wanted)]
    missing = sorted(set(wanted) - {row.number for row in found})
    if missing:
        raise UserError(f"--rows {missing[0]}: {data} has no such row")
    empty = next((row for row in found if not all(row.texts)), None)
    if empty is not None:
        raise UserError(f"--rows {empty.number}: this row of {data} has no text")
    return found


def numbers(rows: Sequence[str]) -> list[int]:
    """
    >>> numbers(["3", "7-9"])
    [3, 7, 8, 9]
    """
    found: list[int] = []
    for told in rows:
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", told)
        if ends is None or not 1 <= int(ends[1]) <= int(ends[2] or ends[1]):
            raise UserError(f"--rows takes numbers from 1, such as 3 or 7-9; got {told!r}")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    if len(found) > MOST_SHOWN:
        raise UserError(f"--rows: at most {MOST_SHOWN} rows can be shown, got {len(found)}")
    return found


MOST_SHOWN = 100
