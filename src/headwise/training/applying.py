"""A trained model at work: judged on labelled rows, or asked about a file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from headwise.guidance import from_pretrained
from headwise.mistakes import Mistake
from headwise.tasks import Examples, Task
from headwise.tasks import named as task_named
from headwise.tasks.columns import choose
from headwise.tasks.formats import Batch, batches
from headwise.tasks.preparing import examples as made_examples
from headwise.tasks.preparing import from_files, read
from headwise.tasks.reading import Rows
from headwise.training import folder
from headwise.training.inputs import Reader
from headwise.training.predictions import for_words, probabilities
from headwise.training.progress import quieter
from headwise.training.run import load
from headwise.training.settings import Settings
from headwise.training.writing import writer_for


@dataclass(frozen=True)
class Trained:
    """A finished run, ready to be used."""

    settings: Settings
    metrics: dict[str, Any]
    model: Any
    reader: Reader

    @classmethod
    def load(cls, run: Path, device: str | torch.device | None = None) -> "Trained":
        """A run's model from its folder.

        Raises:
            Mistake: the folder holds no finished run.
        """
        for name in (folder.SETTINGS, folder.METRICS):
            if not (run / name).is_file():
                why = "no such folder" if not run.is_dir() else f"{name} is missing"
                hint = ": the run did not finish; headwise train --resume goes on" if name == folder.METRICS else ""
                raise Mistake(f"{run}: holds no finished run ({why}){hint if run.is_dir() else ''}")
        metrics = json.loads((run / folder.METRICS).read_text(encoding="utf-8"))
        tokens = metrics["kind"] == "tokens"
        with quieter():
            auto: Any = AutoModelForTokenClassification if tokens else AutoModelForSequenceClassification
            model: Any = from_pretrained(run, auto, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(run)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        inputs = metrics["inputs"]
        hierarchy = None if inputs["hierarchy"] is None else tuple(inputs["hierarchy"])
        reader = Reader(tokenizer, metrics["kind"], inputs["pair"], inputs["max_length"], hierarchy)
        return cls(Settings.read(run / folder.SETTINGS), metrics, model.to(device).eval(), reader)

    def scores(self, rows: dict[str, Sequence[Any]], batch_size: int = 64) -> list[Any]:
        """The model's scores for rows of text: an array a row, for tokens (words, classes)."""
        encoded = self.reader.encode(rows)
        count = len(encoded["input_ids"])
        order = sorted(range(count), key=lambda i: encoded["length"][i])  # texts of a length together
        found: list[Any] = [None] * count
        for start in range(0, count, batch_size):
            chosen = order[start : start + batch_size]
            batch = self.reader.collate([{name: x[i] for name, x in encoded.items()} for i in chosen])
            labels = batch.pop("labels", None)
            with torch.inference_mode(), self.precision():
                logits = self.model(**{name: x.to(self.model.device) for name, x in batch.items()}).logits
            for place, row in zip(chosen, logits.float().cpu().numpy(), strict=True):
                if self.reader.kind == "tokens":
                    assert labels is not None
                    known = labels[chosen.index(place)].numpy() != -100
                    row = for_words(row[known], len(rows["words"][place]), tuple(self.metrics["labels"]))
                found[place] = row
        return found

    def precision(self) -> AbstractContextManager[Any]:
        device = self.model.device.type
        return torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext()


def evaluate(run: Path, data: Path | None = None) -> dict[str, Any]:
    """How good a run's model is: on its own test split (dev, where there is none), or on another labelled file.

    Returns:
        What was judged, how many rows, the figures, and the standard error of the primary one.

    Raises:
        Mistake: no such run, or a file that does not fit it.
    """
    trained = Trained.load(run)
    settings = trained.settings
    if data is None:
        task, examples = load(settings)
        split = "test" if "test" in examples.splits else "dev"
        rows = examples.splits[split]
        what = f"{task.name}, {split}: {examples.recipe}"
    else:
        if settings.task is not None and task_named(settings.task).kind == "ranking":
            raise Mistake(f"{data}: rankings are judged on the task's own candidates; leave --data out")
        task, examples = labelled(trained, data)
        rows, what = examples.splits["test"], data.name
    found = []
    for part in tqdm(
        rows.iter(1000), total=-(-len(rows) // 1000), desc="evaluating", unit="thousand", leave=False, delay=1
    ):
        found += trained.scores({name: x for name, x in part.items() if name != "label"})
    scores = found if task.kind == "tokens" else np.stack(found).astype(np.float64)
    return {
        "on": what,
        "rows": len(rows),
        "primary": task.primary,
        "figures": task.metrics(scores, rows),
        "standard_error": task.standard_error(scores, rows),
    }


def labelled(trained: Trained, data: Path) -> tuple[Task, Examples]:
    """A file with labels, as the run's task knows them."""
    settings, kind = trained.settings, trained.reader.kind
    given: Any = {"text": settings.text, "pair": settings.pair, "label": settings.label}
    rows: dict[str, Rows] = read({"test": from_files([data], kind)}, kind, **given)  # type: ignore[arg-type]
    labels = tuple(trained.metrics["labels"])
    # Numbers and splits are the run's: the file is all test.
    made = made_examples({"train": rows["test"], "test": rows["test"]}, seed=0, origin=data.name, names=labels or None)
    return Task(name=trained.metrics["task"], kind=kind, about=""), made  # type: ignore[arg-type]


def predict(run: Path, data: Path, out: Path, *, text: str | None = None, pair: str | None = None) -> int:
    """Write a file again, with the model's label and probabilities beside each row, in the order of the rows.

    A thousand rows are in memory at a time. Rows without a text get no label. Nothing is left of an output that could
    not be finished.

    Args:
        run: a finished run's folder.
        data: CSV, TSV, JSONL or Parquet, gzipped or not.
        out: what to write, in the same format.
        text, pair: the columns of the texts; by default the run's, or found by their names.

    Returns:
        How many rows got no label.

    Raises:
        Mistake: no such run or file, a column that is not there, or a line that cannot be read.
    """
    trained = Trained.load(run)
    if trained.reader.kind == "tokens":
        return predict_tokens(trained, data, out)
    settings = trained.settings
    empty = 0
    with writer_for(out, like=data) as write:
        for number, batch in enumerate(shown(batches(data))):
            if number == 0:
                columns = choose(batch, text=text or settings.text, pair=pair or settings.pair, labelled=False)
                if (columns.pair is None) != (trained.reader.pair is None):
                    wanted = "two texts a row: say --text and --pair" if columns.pair is None else "one text a row"
                    raise Mistake(f"{data}: this model reads {wanted}; there: {', '.join(batch.columns)}")
            names = {"text": columns.text} | ({} if columns.pair is None else {"pair": columns.pair})
            texts = {role: [as_text(x) for x in batch.columns[name]] for role, name in names.items()}
            real = [i for i in range(len(batch.rows)) if all(texts[role][i].strip() for role in texts)]
            empty += len(batch.rows) - len(real)
            scores = trained.scores({role: [found[i] for i in real] for role, found in texts.items()}) if real else []
            write(dict(batch.columns) | added(batch, real, scores, trained))
    return empty


def added(batch: Batch, real: Sequence[int], scores: Sequence[Any], trained: Trained) -> dict[str, list[Any]]:
    """The new columns: `predicted`, and a probability for each label; a rating has no probability."""
    kind, labels = trained.reader.kind, trained.metrics["labels"]
    blank: list[Any] = [None] * len(batch.rows)
    columns: dict[str, list[Any]] = {"predicted": list(blank)}
    if kind != "regression":
        columns |= {f"probability_{label}": list(blank) for label in labels}
    for place, row in zip(real, scores, strict=True):
        shares = probabilities(kind, np.asarray(row, dtype=np.float64))
        if kind == "regression":
            columns["predicted"][place] = float(shares[0])
            continue
        chosen = [labels[int(shares.argmax())]]
        if kind == "multi-label":
            chosen = [label for label, share in zip(labels, shares, strict=True) if share > 0.5]
        columns["predicted"][place] = "|".join(chosen)
        for label, share in zip(labels, shares, strict=True):
            columns[f"probability_{label}"][place] = round(float(share), 6)
    taken = [name for name in columns if name in batch.columns]
    if taken:
        raise Mistake(f"{batch.path}: has a column {taken[0]!r} already, which is what predictions are called")
    return columns


def predict_tokens(trained: Trained, data: Path, out: Path) -> int:
    """Sentences of words, a word a line, with the model's tag behind each."""
    source, labels = from_files([data], "tokens"), trained.metrics["labels"]
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for batch in shown(iter(source.read(data, None))):
                columns = choose(batch, text=trained.settings.text, labelled=False)
                words = [list(row) for row in batch.columns[columns.text]]
                for sentence, scores in zip(words, trained.scores({"words": words}), strict=True):
                    tags = [labels[int(row.argmax())] for row in scores]
                    file.writelines(f"{word} {tag}\n" for word, tag in zip(sentence, tags, strict=True))
                    file.write("\n")
        folder.flush(part)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return 0


def as_text(value: Any) -> str:
    return "" if value is None else str(value)


def shown(parts: Iterator[Batch]) -> Iterator[Batch]:
    """The same, with a bar that counts rows."""
    with tqdm(desc="predicting", unit=" rows", leave=False, delay=1) as bar:
        for part in parts:
            yield part
            bar.update(len(part.rows))
