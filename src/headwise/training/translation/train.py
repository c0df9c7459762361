"""Training of a translator, from pairs of sentences to a run directory with model, metrics and card."""

import logging
import shutil
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
from headwise.training.translation.batches import TokenBatchSampler
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.inference import Decoder
from headwise.training.translation.model import build, train_tokenizer
from headwise.training.translation.tokens import TokenizedPairs
from headwise.training.translation.trainer import TranslationTrainer, average_checkpoints

logger = logging.getLogger(__name__)

#: Number of dev evaluations, and of checkpoints, of a run with --steps.
NUM_EVALUATIONS = 20


@dataclass(frozen=True)
class TrainingDefaults:
    """Training options of a model size that the user did not give."""

    batch_size: int
    warmup: int
    epochs: int = 30


DEFAULTS = {
    "small": TrainingDefaults(8_192, 400),
    "base": TrainingDefaults(25_000, 4_000),
    "big": TrainingDefaults(25_000, 4_000),
}


@dataclass(frozen=True)
class TranslationData:
    """The pairs of a run, their tokenizer and their tokens by split."""

    pairs: Pairs
    tokenizer: Any
    tokens: Mapping[str, TokenizedPairs]


def run_training(config: TranslationConfig, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train, evaluate and write a translator; return the contents of `metrics.json`.

    Raises:
        UserError: the configuration or the data is invalid; existing files are left unchanged.
    """
    pairs = first_then_all(lambda: load(config))
    tokens_dir = out.with_name(f".{out.name}{run_dir.TOKENS}")  # not in `out`, which is written once all is valid
    with run_dir.enough_room(out):
        try:
            first_only(lambda: tokenize(config, pairs, tokens_dir))
            data = open_tokens(pairs, tokens_dir)
            check_batch_size(config, data)
            first_only(lambda: run_dir.begin(out, header() + config.to_yaml(), resume=resume))
            return fit_and_evaluate(config, data, out, resume=resume)
        finally:
            if state().is_main_process:
                shutil.rmtree(tokens_dir, ignore_errors=True)


def load(config: TranslationConfig) -> Pairs:
    """Read the pairs of a run.

    Raises:
        UserError: the data is invalid.
    """
    pairs = read_pairs(config.data[0], *config.pair, seed=config.seed)
    train = pairs.splits["train"]
    if config.rows is None or config.rows >= len(train):
        return pairs
    sample = train.select(np.sort(shuffled_indices(len(train), config.seed)[: config.rows]))
    recipe = f"{pairs.recipe} {config.rows:,} of the training pairs, drawn with seed {config.seed}."
    return replace(pairs, splits={**pairs.splits, "train": sample}, recipe=recipe)


def tokenize(config: TranslationConfig, pairs: Pairs, folder: Path) -> None:
    """Train the tokenizer and write it and the tokens of all splits to a folder.

    Raises:
        UserError: a sentence is too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(config, pairs.splits["train"])
    tokenizer.save_pretrained(folder)
    for split, rows in pairs.splits.items():
        location = partial(pairs.place, split)
        TokenizedPairs.write(
            folder, split, rows, tokenizer, max_length=config.max_length, clip=config.clip, location=location
        )


def open_tokens(pairs: Pairs, folder: Path) -> TranslationData:
    """Open the files that `tokenize` wrote."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return TranslationData(pairs, tokenizer, {split: TokenizedPairs.open(folder, split) for split in pairs.splits})


def check_batch_size(config: TranslationConfig, data: TranslationData) -> None:
    """Check that batches can hold the longest sentences.

    Raises:
        UserError: they cannot.
    """
    for split in ("train", "dev"):
        tokens = data.tokens[split]
        lengths = tokens.source.lengths, tokens.target.lengths
        TokenBatchSampler(*lengths, get_batch_size(config), num_processes=state().num_processes)


def get_batch_size(config: TranslationConfig) -> int:
    return config.batch_size or DEFAULTS[config.model].batch_size


def fit_and_evaluate(config: TranslationConfig, data: TranslationData, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train a translator on tokenized pairs, evaluate it and write the run directory."""
    set_seed(config.seed)
    model: Any = build(config, data.tokenizer)
    notes = describe(config, model, data)
    if state().is_main_process:
        logger.info("translation: %s", data.pairs.recipe)
        for note in notes:
            logger.info("  %s", note)

    trainer = TranslationTrainer(
        model=model,
        args=training_arguments(config, model, out),
        pairs=data.tokens,
        row_numbers=data.pairs.splits["train"]["row"],
        batch_size=get_batch_size(config),
        label_smoothing=config.smoothing,
        compute_dev_metrics=(lambda: dev_bleu(config, data, model)) if config.choose == "bleu" else None,
        callbacks=[EarlyStoppingCallback(config.patience)],
    )
    start = time.perf_counter()
    train_output = fit(trainer, out, resume=resume)
    train_seconds = time.perf_counter() - start
    if config.average > 1:
        state().wait_for_everyone()
        count = average_checkpoints(model, out / run_dir.CHECKPOINTS, config.average)
        notes.append(f"the mean of the last {count} checkpoints")

    start = time.perf_counter()
    translations = translate_splits(config, data, model)
    decoding_seconds = time.perf_counter() - start
    references = {split: get_references(data, split) for split in translations}
    results: dict[str, Any] = {
        "task": "translation",
        "label_type": "translation",
        "primary_metric": metrics.PRIMARY,
        "source": config.source,
        "target": config.target,
        "metrics": {split: metrics.compute(texts, references[split]) for split, texts in translations.items()},
        "standard_error": {
            split: metrics.standard_error(texts, references[split]) for split, texts in translations.items()
        },
        "signatures": metrics.signatures(),
        "dev_loss": trainer.dev_loss(),
        "dataset": data.pairs.recipe,
        "notes": notes,
        "model": config.model,
        "parameters": sum(p.numel() for p in model.parameters()),
        "epochs": train_output.metrics.get("epoch"),
        "steps": train_output.global_step,
        "train_seconds": round(train_seconds, 2),
        "decoding": {
            "beams": config.beams,
            "sentences_per_second": round(sum(map(len, translations.values())) / decoding_seconds, 1),
        },
        "history": [log for log in trainer.state.log_history if "loss" in log or "eval_loss" in log],
        "versions": versions(),
    }
    weights = whole_weights(trainer)
    if trainer.is_world_process_zero():
        with run_dir.staging_dir(out) as stage:
            model.generation_config.update(
                **build_decoder(config, data, model, num_beams=config.beams).generation_options
            )
            model.save_pretrained(stage, state_dict=weights)
            data.tokenizer.save_pretrained(stage)
            write_predictions(stage / run_dir.PREDICTIONS, translations, data.pairs)
            (stage / "README.md").write_text(card.text(config, results), encoding="utf-8")
            (stage / run_dir.METRICS).write_text(run_dir.to_json(results), encoding="utf-8")
    state().wait_for_everyone()
    return results


def training_arguments(config: TranslationConfig, model: Any, out: Path) -> TrainingArguments:
    """Return the Trainer's arguments: Adam and the learning rate schedule of Vaswani et al. (2017)."""
    defaults = DEFAULTS[config.model]
    warmup = config.warmup or defaults.warmup
    evaluation: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    if config.steps is not None:
        interval = max(1, config.steps // NUM_EVALUATIONS)
        evaluation = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": interval}
        evaluation |= {"save_steps": interval, "max_steps": config.steps}
    args = TrainingArguments(
        output_dir=str(out / run_dir.CHECKPOINTS),
        num_train_epochs=config.epochs or defaults.epochs,
        learning_rate=config.learning_rate or (model.config.dim * warmup) ** -0.5,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=warmup,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        weight_decay=0.0,
        max_grad_norm=0.0,
        use_cpu=on_cpu(),
        bf16=in_bfloat16(config),
        seed=config.seed,
        remove_unused_columns=False,
        save_total_limit=max(2, config.average),
        restore_callback_states_from_checkpoint=True,  # otherwise patience starts anew
        load_best_model_at_end=config.average == 1,
        metric_for_best_model=f"eval_{config.choose}",
        greater_is_better=config.choose == "bleu",
        logging_steps=0.05,
        logging_nan_inf_filter=False,  # it synchronizes with the GPU in every step
        disable_tqdm=False,  # the default depends on the log level
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        **evaluation,
    )
    args._n_gpu = min(args.n_gpu, 1)  # one GPU per process; torchrun starts several, DataParallel is slow
    return args


def describe(config: TranslationConfig, model: Any, data: TranslationData) -> list[str]:
    """Return notes about the model and its data for the log, the card and `metrics.json`."""
    model_config = model.config
    device = "a GPU" if torch.cuda.is_available() else "the CPU"
    schemes = model_config.scheme
    if model_config.decoder_scheme != model_config.scheme:
        schemes = f"{model_config.scheme}, {model_config.decoder_scheme}"
    notes = [
        f"model {config.model}, {sum(p.numel() for p in model.parameters()):,} parameters, on {device}",
        f"attention {schemes} {model_config.scheme_options or ''}".rstrip()
        + f", input positions {model_config.positions}",
        f"{model_config.vocab_size:,} subwords, shared by both languages, from the training pairs",
    ]
    num_clipped = {split: tokens.num_clipped for split, tokens in data.tokens.items() if tokens.num_clipped}
    if num_clipped:
        counts = ", ".join(f"{count:,} {split}" for split, count in num_clipped.items())
        notes.append(f"longer than {config.max_length} tokens (--max-length) and clipped: {counts} pairs")
    return notes


def build_decoder(config: TranslationConfig, data: TranslationData, model: Any, *, num_beams: int) -> Decoder:
    return Decoder(model, data.tokenizer, num_beams, config.length_penalty, in_bfloat16(config))


def dev_bleu(config: TranslationConfig, data: TranslationData, model: Any) -> dict[str, float]:
    """Compute BLEU and chrF of dev, decoded greedily."""
    translations = build_decoder(config, data, model, num_beams=1).translate(get_sources(data, "dev"))
    return metrics.compute(translations, get_references(data, "dev"))


def translate_splits(config: TranslationConfig, data: TranslationData, model: Any) -> dict[str, list[str]]:
    """Translate dev and all test sets. Every process translates all of them, which takes little time."""
    model.eval()
    decoder = build_decoder(config, data, model, num_beams=config.beams)
    return {
        split: decoder.translate(get_sources(data, split), show_progress=state().is_main_process)
        for split in ("dev", *data.pairs.tests)
    }


def get_sources(data: TranslationData, split: str) -> list[Any]:
    """Return the token ids of a split's source sentences."""
    source = data.tokens[split].source
    return [ids.tolist() for ids in np.split(source.ids, source.ends[:-1])]


def get_references(data: TranslationData, split: str) -> list[str]:
    return list(data.pairs.splits[split]["target"])


def write_predictions(path: Path, translations: Mapping[str, list[str]], pairs: Pairs) -> None:
    """Write `predictions.parquet`: split, row number, both sentences and the translation of each pair."""
    tables = []
    for split, texts in translations.items():
        rows = pairs.splits[split]
        names = {"row": "row", "source": "source", "reference": "target"}
        columns: dict[str, Any] = {name: list(rows[column]) for name, column in names.items()}
        tables.append(pa.table({"split": [split] * len(rows), **columns, "predicted": texts}))
    pq.write_table(pa.concat_tables(tables), path)
