"""One run: from pairs of sentences to a folder with a translator, its figures and its card."""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import EarlyStoppingCallback, PreTrainedTokenizerFast, TrainingArguments, set_seed
from transformers.integrations.integration_utils import is_tensorboard_available

from headwise.tasks.splitting import shuffled_indices
from headwise.tasks.translation import Pairs, metrics, read_pairs
from headwise.training.core import run_dir
from headwise.training.core.checkpointing import fit, whole_weights
from headwise.training.core.distributed import first_only, first_then_all, on_cpu, state
from headwise.training.run import header, in_bfloat16, versions
from headwise.training.translation import card
from headwise.training.translation.averaging import average
from headwise.training.translation.batches import TokenBatches
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.decoding import Decoder
from headwise.training.translation.model import build, subwords
from headwise.training.translation.tokens import Tokens
from headwise.training.translation.trainer import TranslationTrainer

#: Looks at dev, and checkpoints, of a run whose steps are given.
LOOKS = 20


@dataclass(frozen=True)
class Usual:
    """How a model is trained unless the user says otherwise."""

    batch_size: int
    warmup: int
    epochs: int = 30


USUAL = {"small": Usual(8_192, 400), "base": Usual(25_000, 4_000), "big": Usual(25_000, 4_000)}


@dataclass(frozen=True)
class Prepared:
    """Pairs, and their tokens."""

    pairs: Pairs
    tokenizer: Any
    tokens: Mapping[str, Tokens]


def run_training(settings: TranslationConfig, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train, judge and write a translator; its figures and what belongs to them come back.

    Raises:
        UserError: what the user should do differently; nothing that was there is lost.
    """
    pairs = first_then_all(lambda: load(settings))
    kept = out.with_name(f".{out.name}{run_dir.TOKENS}")  # beside the run, which begins when nothing is wrong
    with run_dir.enough_room(out):
        try:
            first_only(lambda: prepare(settings, pairs, kept))
            prepared = opened(pairs, kept)
            check_room(settings, prepared)
            first_only(lambda: run_dir.begin(out, header() + settings.to_yaml(), resume=resume))
            return fitted(settings, prepared, out, resume=resume)
        finally:
            if state().is_main_process:
                shutil.rmtree(kept, ignore_errors=True)


def load(settings: TranslationConfig) -> Pairs:
    """The pairs, or some of them.

    Raises:
        UserError: anything wrong with the data.
    """
    pairs = read_pairs(settings.data[0], *settings.pair, seed=settings.seed)
    train = pairs.splits["train"]
    if settings.rows is None or settings.rows >= len(train):
        return pairs
    drawn = train.select(np.sort(shuffled_indices(len(train), settings.seed)[: settings.rows]))
    told = f"{pairs.recipe} {settings.rows:,} of the training pairs, drawn by seed {settings.seed}."
    return replace(pairs, splits={**pairs.splits, "train": drawn}, recipe=told)


def prepare(settings: TranslationConfig, pairs: Pairs, kept: Path) -> None:
    """Learn subwords and tokenise all splits, into a folder.

    Raises:
        UserError: a sentence is too long.
    """
    kept.mkdir(parents=True, exist_ok=True)
    tokenizer = subwords(settings, pairs.splits["train"])
    tokenizer.save_pretrained(kept)
    for split, rows in pairs.splits.items():
        place = partial(pairs.location, split)
        Tokens.write(kept, split, rows, tokenizer, longest=settings.max_length, clip=settings.clip, place=place)


def opened(pairs: Pairs, kept: Path) -> Prepared:
    """What `prepare` left."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(kept)
    return Prepared(pairs, tokenizer, {split: Tokens.open(kept, split) for split in pairs.splits})


def check_room(settings: TranslationConfig, prepared: Prepared) -> None:
    """Make sure that batches have room for all sentences.

    Raises:
        UserError: they have not.
    """
    for split in ("train", "dev"):
        tokens = prepared.tokens[split]
        lengths = tokens.source.lengths, tokens.target.lengths
        TokenBatches(*lengths, batch_size_of(settings), processes=state().num_processes)


def batch_size_of(settings: TranslationConfig) -> int:
    return settings.batch_size or USUAL[settings.model].batch_size


def fitted(settings: TranslationConfig, prepared: Prepared, out: Path, *, resume: bool) -> dict[str, Any]:
    """A translator trained, judged and written."""
    set_seed(settings.seed)
    model: Any = build(settings, prepared.tokenizer)
    notes = notes_of(settings, model, prepared)
    if state().is_main_process:
        print(f"translation: {prepared.pairs.recipe}", file=sys.stderr)
        for note in notes:
            print(f"  {note}", file=sys.stderr)

    trainer = TranslationTrainer(
        model=model,
        args=arguments(settings, model, out),
        tokens=prepared.tokens,
        numbers=prepared.pairs.splits["train"]["row"],
        batch_size=batch_size_of(settings),
        smoothing=settings.smoothing,
        judge=(lambda: dev_bleu(settings, prepared, model)) if settings.choose == "bleu" else None,
        callbacks=[EarlyStoppingCallback(settings.patience)],
    )
    start = time.perf_counter()
    done = fit(trainer, out, resume=resume)
    seconds = time.perf_counter() - start
    if settings.average > 1:
        state().wait_for_everyone()
        count = average(model, out / run_dir.CHECKPOINTS, settings.average)
        notes.append(f"the mean of the last {count} checkpoints")

    start = time.perf_counter()
    said = translations(settings, prepared, model)
    decoding = time.perf_counter() - start
    judged = {split: references(prepared, split) for split in said}
    found: dict[str, Any] = {
        "task": "translation",
        "label_type": "translation",
        "primary_metric": metrics.PRIMARY,
        "source": settings.source,
        "target": settings.target,
        "metrics": {split: metrics.compute(texts, judged[split]) for split, texts in said.items()},
        "standard_error": {split: metrics.standard_error(texts, judged[split]) for split, texts in said.items()},
        "signatures": metrics.signatures(),
        "dev_loss": trainer.dev_loss(),
        "dataset": prepared.pairs.recipe,
        "notes": notes,
        "model": settings.model,
        "parameters": sum(p.numel() for p in model.parameters()),
        "epochs": done.metrics.get("epoch"),
        "steps": done.global_step,
        "train_seconds": round(seconds, 2),
        "decoding": {
            "beams": settings.beams,
            "sentences_per_second": round(sum(map(len, said.values())) / decoding, 1),
        },
        "history": [log for log in trainer.state.log_history if "loss" in log or "eval_loss" in log],
        "versions": versions(),
    }
    weights = whole_weights(trainer)
    if trainer.is_world_process_zero():
        with run_dir.staging_dir(out) as stage:
            model.generation_config.update(**decoder(settings, prepared, model, beams=settings.beams).search)
            model.save_pretrained(stage, state_dict=weights)
            prepared.tokenizer.save_pretrained(stage)
            write_predictions(stage / run_dir.PREDICTIONS, said, prepared.pairs)
            (stage / "README.md").write_text(card.text(settings, found), encoding="utf-8")
            (stage / run_dir.METRICS).write_text(run_dir.to_json(found), encoding="utf-8")
    state().wait_for_everyone()
    return found


def arguments(settings: TranslationConfig, model: Any, out: Path) -> TrainingArguments:
    """The Trainer's: Adam and the learning rate as in Vaswani et al. (2017), nothing that makes the host wait."""
    usual = USUAL[settings.model]
    warmup = settings.warmup or usual.warmup
    looks: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    if settings.steps is not None:
        every = max(1, settings.steps // LOOKS)
        looks = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": every, "save_steps": every}
        looks["max_steps"] = settings.steps
    made = TrainingArguments(
        output_dir=str(out / run_dir.CHECKPOINTS),
        num_train_epochs=settings.epochs or usual.epochs,
        learning_rate=settings.learning_rate or (model.config.dim * warmup) ** -0.5,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=warmup,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        weight_decay=0.0,
        max_grad_norm=0.0,
        use_cpu=on_cpu(),
        bf16=in_bfloat16(settings),
        seed=settings.seed,
        remove_unused_columns=False,
        save_total_limit=max(2, settings.average),
        restore_callback_states_from_checkpoint=True,  # else patience would begin anew
        load_best_model_at_end=settings.average == 1,
        metric_for_best_model=f"eval_{settings.choose}",
        greater_is_better=settings.choose == "bleu",
        logging_steps=0.05,
        logging_nan_inf_filter=False,  # which would wait for every step
        disable_tqdm=False,  # which quieter libraries would mean
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        **looks,
    )
    made._n_gpu = min(made.n_gpu, 1)  # one process, one GPU: torchrun starts several, DataParallel is slow
    return made


def notes_of(settings: TranslationConfig, model: Any, prepared: Prepared) -> list[str]:
    """What there is to say about a model and its data."""
    config = model.config
    where = "a GPU" if torch.cuda.is_available() else "the CPU"
    attention = config.scheme if config.decoder_scheme == config.scheme else f"{config.scheme}, {config.decoder_scheme}"
    notes = [
        f"model {settings.model}, {sum(p.numel() for p in model.parameters()):,} parameters, on {where}",
        f"attention {attention} {config.scheme_options or ''}".rstrip() + f", input positions {config.positions}",
        f"{config.vocab_size:,} subwords of both languages, from the training pairs",
    ]
    clipped = {split: tokens.clipped for split, tokens in prepared.tokens.items() if tokens.clipped}
    if clipped:
        told = ", ".join(f"{count:,} {split}" for split, count in clipped.items())
        notes.append(f"longer than {settings.max_length} tokens (--max-length) and clipped: {told} pairs")
    return notes


def decoder(settings: TranslationConfig, prepared: Prepared, model: Any, *, beams: int) -> Decoder:
    return Decoder(model, prepared.tokenizer, beams, settings.length_penalty, in_bfloat16(settings))


def dev_bleu(settings: TranslationConfig, prepared: Prepared, model: Any) -> dict[str, float]:
    """Dev's BLEU and chrF, decoded greedily."""
    said = decoder(settings, prepared, model, beams=1).translate(sources(prepared, "dev"))
    return metrics.compute(said, references(prepared, "dev"))


def translations(settings: TranslationConfig, prepared: Prepared, model: Any) -> dict[str, list[str]]:
    """Dev and all test sets, translated. Each process does all of it: it is over soon."""
    model.eval()
    how = decoder(settings, prepared, model, beams=settings.beams)
    return {
        split: how.translate(sources(prepared, split), shown=state().is_main_process)
        for split in ("dev", *prepared.pairs.tests)
    }


def sources(prepared: Prepared, split: str) -> list[Any]:
    """The source sentences of a split, as tokens."""
    found = prepared.tokens[split].source
    return [ids.tolist() for ids in np.split(found.ids, found.ends[:-1])]


def references(prepared: Prepared, split: str) -> list[str]:
    return list(prepared.pairs.splits[split]["target"])


def write_predictions(path: Path, said: Mapping[str, list[str]], pairs: Pairs) -> None:
    """`predictions.parquet`: for each pair of dev and tests its split, number, both sentences and the translation."""
    tables = []
    for split, texts in said.items():
        rows = pairs.splits[split]
        names = {"row": "row", "source": "source", "reference": "target"}
        columns: dict[str, Any] = {name: list(rows[column]) for name, column in names.items()}
        tables.append(pa.table({"split": [split] * len(rows), **columns, "predicted": texts}))
    pq.write_table(pa.concat_tables(tables), path)
