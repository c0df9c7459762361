"""Inspection of models: finished runs, and Hugging Face models in a directory or on the hub."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from headwise.errors import UserError
from headwise.inspection.head_statistics import add_sums, from_sums, sum_head_statistics
from headwise.inspection.inspected_model import InspectedModel, Texts
from headwise.inspection.output_dir import (
    FIGURES,
    PAGE,
    find_schemes,
    plot_learned_parameters,
    write_figures,
    write_inspection,
)
from headwise.inspection.viewer import Viewer, build_viewer, check_model_names
from headwise.integrations import from_pretrained
from headwise.integrations.fusion import fuse_to_record
from headwise.locks import LOCK_FILE, lock_output
from headwise.models import FirstToken
from headwise.models.first_token import NAME as FIRST_TOKEN
from headwise.tasks.columns import Columns
from headwise.tasks.formats.parts import plan_parts
from headwise.training.core import run_dir
from headwise.training.core.environment import get_device
from headwise.training.core.model_names import check_directory
from headwise.training.core.pretrained import (
    is_available,
    load_pretrained,
    loading_errors,
    max_input_length,
    remote_code,
)
from headwise.training.jobs import PART_ROWS, JobDir, JobOptions, Progress, Result, open_job, run_job
from headwise.training.jobs.files import InputPart
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.registry import get_task_type, load_config
from headwise.training.text_rows import choose_rows, find_columns, parse_rows, read_rows

logger = logging.getLogger(__name__)


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
    targets: Sequence[str] = (),
    data: Path | None = None,
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    force: bool = False,
    trust_remote_code: bool = False,
    processes: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    part_rows: int | None = None,
) -> InspectionResult:
    """Write a page about the attention of models, optionally with figures and tables.

    Without `texts` and `data`, the distance weights that heads have learned are plotted.

    Args:
        models: run directories, or directories or names of Hugging Face models; up to four with `texts` or `data`.
        out: the page (`….html`), or a directory for the page, figures and tables.
        texts: the texts to show.
        targets: for translators and other encoder-decoder models, the text that the decoder reads for each text; by
            default the one that the model generates.
        data: a file of texts. Statistics are computed over all rows, and some rows are shown.
        columns: the text column and the second text column of the file; detected by default.
        rows: the rows to show, counted from 1, such as `3` and `7-9`; by default the first four.
        force: replace existing output.
        trust_remote_code: run the Python code of the models' directories, if they have some.
        processes: the number of local processes that compute statistics of `data`; by default one per GPU, or this
            process alone.
        cluster: the address of a Ray cluster that computes them, or `auto`.
        resume: continue an unfinished inspection with the same output, if there is one.
        part_rows: the number of rows that are computed, stored and repeated together.

    Raises:
        UserError: the models, the texts or the output are invalid.
    """
    if texts and data is not None:
        raise UserError("--text and --data cannot be combined")
    if data is None and (processes or cluster or resume or part_rows):
        raise UserError("--processes, --cluster, --resume and --part-rows require --data")
    if data is None and (rows or columns):
        raise UserError("--rows and --columns require --data")
    if targets and len(targets) != len(texts):
        raise UserError(f"--target has {len(targets)} texts, --text has {len(texts)}; give as many of each")
    if len(models) != len(set(models)):
        raise UserError(f"a model is named twice: {', '.join(models)}")
    names, row_numbers = short_names(models), parse_rows(rows)
    check_output(out, force)
    if texts or data is not None:
        check_model_names(names)
    with lock_output(out, is_directory=out.suffix != ".html"), remote_code(trust_remote_code):
        if data is None:
            return write_output(models, names, out, texts, targets)
        options = JobOptions(processes=processes, cluster=cluster, resume=resume, force=force, part_rows=part_rows)
        corpus = Corpus(data, find_columns(data, columns), row_numbers)
        plan = corpus.describe(models, options)
        with open_job(out, plan, options) as job_dir:
            assert job_dir is not None
            build = partial(inspect_corpus, corpus, models, options, job_dir)
            return write_output(models, names, out, (), build=build)


def write_output(
    models: Sequence[str],
    names: Sequence[str],
    out: Path,
    texts: Sequence[Texts],
    targets: Sequence[str] = (),
    build: Callable[[Sequence[InspectedModel]], Viewer] | None = None,
) -> InspectionResult:
    """Load the models and write the page, or the directory with the page, figures and tables.

    Args:
        models: the models.
        names: their names.
        out: the page or the directory.
        texts: the texts to show.
        targets: the target of each text.
        build: builds the contents of the page if there are no texts.
    """
    if not texts and build is None:
        return plot_learned(models, names, out)
    inspected = [open_model(path, name) for path, name in zip(models, names, strict=True)]
    with loading_errors(", ".join(models), "cannot be run; the files are damaged or do not belong together"):
        viewer = build_viewer(inspected, texts, targets=targets) if build is None else build(inspected)
    if out.suffix == ".html":
        with run_dir.atomic_path(out) as path:
            viewer.write(path)
        return InspectionResult(viewer, out)
    with run_dir.staging_dir(out) as stage:
        write_inspection(viewer, inspected, stage)
    return InspectionResult(viewer, out / PAGE)


def open_model(path: str, name: str | None = None) -> InspectedModel:
    """Load a finished run, or a Hugging Face model from a directory or the hub.

    A model whose own attention layers cannot be read, such as DeBERTa, gets fused ones.

    Raises:
        UserError: there is no such model, or it cannot be loaded.
    """
    inspected = load_model(path, name or Path(path).name)
    families = fuse_to_record(inspected.model)
    if families:
        logger.info("%s: attention layers fused for inspection: %s", inspected.name, ", ".join(families))
    return inspected


def load_model(path: str, name: str) -> InspectedModel:
    """Load a finished run, or a Hugging Face model, with its own attention layers."""
    if (Path(path) / run_dir.CONFIG).is_file():
        return get_task_type(load_config(Path(path, run_dir.CONFIG)).task).pipeline.open_inspected(Path(path), name)
    check_directory(path)
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
    """Return the class that loads a model together with its classification or language-model head, if it has one."""
    if architecture.endswith(FIRST_TOKEN):
        return FirstToken
    if architecture.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    if architecture.endswith("ForTokenClassification"):
        return AutoModelForTokenClassification
    if architecture in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return AutoModelForSeq2SeqLM
    if architecture.endswith("EncoderModel"):  # T5EncoderModel, whose files have no decoder
        return AutoModelForTextEncoding
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


@dataclass(frozen=True)
class Corpus:
    """A file of texts.

    Args:
        data: the file.
        columns: its columns.
        row_numbers: the rows to show, counted from 1; empty for the first ones.
    """

    data: Path
    columns: Columns
    row_numbers: Sequence[int]

    def describe(self, models: Sequence[str], options: JobOptions) -> dict[str, Any]:
        """Return everything that determines the statistics, as JSON."""
        return {
            **describe_inputs(None, [self.data]),
            "models": [str(Path(model).resolve()) if Path(model).exists() else model for model in models],
            "columns": [self.columns.text, self.columns.pair],
            "part_rows": options.part_rows or PART_ROWS,
        }


@dataclass(frozen=True)
class ModelPart(InputPart):
    """Rows of a file that a model reads, given by the model's number."""

    model: int


@dataclass(frozen=True)
class HeadStatisticsTask:
    """Sums the statistics of models' heads over texts.

    Args:
        paths, names: the models.
        columns: the columns of the file.
        opened: the models, if this process has opened them; not sent to other processes.
    """

    paths: Sequence[str]
    names: Sequence[str]
    columns: Columns
    opened: Sequence[InspectedModel] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"opened": None}

    def load(self) -> dict[int, InspectedModel]:
        return dict(enumerate(self.opened or ()))

    def run(self, model: dict[int, InspectedModel], part: ModelPart, out: Path | None, progress: Progress) -> Result:
        if part.model not in model:
            model.clear()
            model[part.model] = open_model(self.paths[part.model], self.names[part.model])
        rows = read_rows(part.file_part.path, self.columns, part.file_part)
        return sum_head_statistics(model[part.model], with_progress((row.texts for row in rows), progress))


def inspect_corpus(
    corpus: Corpus, paths: Sequence[str], options: JobOptions, job_dir: JobDir, models: Sequence[InspectedModel]
) -> Viewer:
    """Show some rows of a file, with statistics over all of it."""
    rows = choose_rows(corpus.data, corpus.columns, corpus.row_numbers)
    viewer = build_viewer(
        models, [row.texts for row in rows], titles=[row.title for row in rows], labels=[row.label for row in rows]
    )
    file_parts = plan_parts(corpus.data, options.part_rows or PART_ROWS, copy=job_dir.path / "input")
    parts = [ModelPart(file_part, index) for index in range(len(models)) for file_part in file_parts]
    task = HeadStatisticsTask(tuple(paths), [model.name for model in models], corpus.columns, models)
    sums: list[Result] = [{} for _ in models]
    for part, result in zip(parts, run_job(task, parts, options, job_dir, verb="inspecting", unit="rows"), strict=True):
        add_sums(sums[part.model], result)
    statistics = [from_sums(model.name, model_sums) for model, model_sums in zip(models, sums, strict=True)]
    return Viewer(viewer.title, viewer.names, viewer.examples, tuple(statistics))


def with_progress(rows: Iterator[Texts], progress: Progress) -> Iterator[Texts]:
    for row in rows:
        yield row
        progress(1)
