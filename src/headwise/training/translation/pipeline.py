"""The translation pipeline."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedTokenizerFast, TrainingArguments

from headwise.tasks.translation import Pairs, metrics
from headwise.training.core import run_dir
from headwise.training.core.arguments import build_arguments
from headwise.training.core.card import UNKNOWN, Card, list_hub_datasets
from headwise.training.core.distributed import shows_progress_bars, state
from headwise.training.core.environment import uses_bfloat16
from headwise.training.core.metrics import Evaluation, SplitResult
from headwise.training.core.pipeline import ModelBundle, Pipeline
from headwise.training.core.pretrained import load_pretrained
from headwise.training.core.run_settings import evaluated_splits
from headwise.training.translation.batches import TokenBatchSampler
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.data import TranslationData, fingerprint, load_data
from headwise.training.translation.evaluate import BASELINE_NOTE, compute_baselines, evaluate
from headwise.training.translation.inference import Decoder, open_inspected
from headwise.training.translation.model import build_model, train_tokenizer
from headwise.training.translation.predict import predict
from headwise.training.translation.tokens import TokenizedPairs
from headwise.training.translation.trainer import TranslationTrainer, average_checkpoints

#: Number of dev evaluations, and of checkpoints, of a run with --steps.
NUM_EVALUATIONS = 20

LOADING_CODE = """\
import headwise
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
batch = tokenizer(["A sentence."], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, max_new_tokens=100), skip_special_tokens=True))"""


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


@dataclass(kw_only=True)
class TranslationBundle(ModelBundle):
    """A translator with its tokenizer, and the tokenized splits."""

    tokens: dict[str, TokenizedPairs]


class TranslationPipeline(Pipeline[TranslationConfig, TranslationData, TranslationBundle]):
    """Pairs of sentences in two languages."""

    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    open_inspected = staticmethod(open_inspected)

    def load(self) -> TranslationData:
        return load_data(self.config)

    def build(self, data: TranslationData, scratch_dir: Path) -> TranslationBundle:
        """Train the tokenizer, tokenize all splits and build the model.

        Raises:
            UserError: a sentence is too long, or a batch cannot hold the longest sentences.
        """
        if state().is_main_process:
            write_tokens(self.config, data.pairs, scratch_dir)
        return self.build_from_tokens(data, scratch_dir)

    def build_from_tokens(self, data: TranslationData, directory: Path) -> TranslationBundle:
        """Build the model for splits that `write_tokens` has tokenized."""
        tokenizer, tokens = open_tokens(data.pairs, directory)
        for split in ("train", "dev"):
            lengths = tokens[split].source.lengths, tokens[split].target.lengths
            TokenBatchSampler(*lengths, get_batch_size(self.config), num_processes=state().num_processes)
        model = build_model(self.config, tokenizer)
        notes = describe_model(model.config) + describe_clipping(self.config, tokens)
        return TranslationBundle(model=model, tokenizer=tokenizer, notes=notes, tokens=tokens)

    def build_trainer(self, data: TranslationData, bundle: TranslationBundle, out_dir: Path) -> TranslationTrainer:
        selects_by_bleu = self.config.choose == "bleu"
        return TranslationTrainer(
            model=bundle.model,
            args=build_training_arguments(self.config, bundle.model, out_dir),
            pairs=bundle.tokens,
            row_numbers=data.pairs.splits["train"]["row"],
            batch_size=get_batch_size(self.config),
            label_smoothing=self.config.smoothing,
            scheme_learning_rate=self.config.scheme_learning_rate,
            compute_dev_metrics=partial(self.compute_dev_metrics, data, bundle) if selects_by_bleu else None,
            callbacks=[EarlyStoppingCallback(self.config.early_stopping_patience or 5)],
        )

    def compute_dev_metrics(self, data: TranslationData, bundle: TranslationBundle) -> dict[str, float]:
        """Compute BLEU and chrF of dev, decoded greedily."""
        translations = self.build_decoder(bundle, num_beams=1).translate(get_sources(bundle.tokens["dev"]))
        return metrics.compute(translations, list(data.pairs.splits["dev"]["target"]))

    def build_decoder(self, bundle: TranslationBundle, *, num_beams: int) -> Decoder:
        return Decoder(
            bundle.model, bundle.tokenizer, num_beams, self.config.length_penalty, uses_bfloat16(self.config)
        )

    def after_training(self, bundle: TranslationBundle, trainer: Any, out_dir: Path) -> None:
        model: Any = bundle.model
        if self.config.average > 1:
            state().wait_for_everyone()
            count = average_checkpoints(model, out_dir / run_dir.CHECKPOINTS, self.config.average)
            bundle.notes.append(f"the mean of the last {count} checkpoints")
        decoder = self.build_decoder(bundle, num_beams=self.config.beams)
        model.generation_config.update(**decoder.generation_options)
        model.eval()

    def evaluate_splits(self, data: TranslationData, bundle: TranslationBundle, trainer: Any) -> Evaluation:
        """Translate dev and all test sets. Every process translates all of them, which takes little time."""
        decoder = self.build_decoder(bundle, num_beams=self.config.beams)
        start = time.perf_counter()
        translations = {
            split: decoder.translate(get_sources(bundle.tokens[split]), show_progress=shows_progress_bars())
            for split in evaluated_splits(("dev", *data.pairs.tests))
        }
        sentences_per_second = sum(map(len, translations.values())) / (time.perf_counter() - start)
        results = {}
        for split, texts in translations.items():
            rows = data.pairs.splits[split]
            references = list(rows["target"])
            results[split] = SplitResult(
                metrics=metrics.compute(texts, references),
                standard_error=metrics.standard_error(texts, references),
                predictions=build_predictions(split, rows, texts),
                fingerprint=fingerprint(rows),
                baselines=compute_baselines(rows),
            )
        extras = {
            "source": self.config.source,
            "target": self.config.target,
            "signatures": metrics.signatures(),
            "baseline_notes": [BASELINE_NOTE],
            "dev_loss": trainer.dev_loss(),
            "decoding": {"beams": self.config.beams, "sentences_per_second": round(sentences_per_second, 1)},
        }
        return Evaluation(results, extras)

    def describe(self, data: TranslationData, bundle: TranslationBundle, metrics: dict[str, Any]) -> Card:
        config = self.config
        signatures = ", ".join(f"`{signature}`" for signature in metrics["signatures"].values())
        return Card(
            header={
                "library_name": "headwise",
                "pipeline_tag": "translation",
                "language": list(config.pair),
                "tags": ["headwise", config.scheme],
                "license": UNKNOWN,
                **list_hub_datasets(config.data),
            },
            title=f"{config.source} → {config.target}, {config.model}",
            description=f"A Transformer with {config.scheme} attention, trained from scratch.",
            error_method=f"bootstrap over sentences (sacrebleu {signatures})",
            loading_code=LOADING_CODE,
            usage="`headwise predict PATH FILE --out TRANSLATED` translates a file line by line.",
        )


def write_tokens(config: TranslationConfig, pairs: Pairs, directory: Path) -> None:
    """Train the tokenizer and write it and the tokens of all splits to a directory.

    Raises:
        UserError: a sentence is too long.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(config, pairs.splits["train"])
    tokenizer.save_pretrained(directory)
    for split, rows in pairs.splits.items():
        location = partial(pairs.location, split)
        TokenizedPairs.write(
            directory, split, rows, tokenizer, max_length=config.max_length, clip=config.clip, location=location
        )


def open_tokens(pairs: Pairs, directory: Path) -> tuple[Any, dict[str, TokenizedPairs]]:
    """Open the tokenizer and the tokens that `write_tokens` wrote."""
    tokenizer = load_pretrained(PreTrainedTokenizerFast, directory)
    return tokenizer, {split: TokenizedPairs.open(directory, split) for split in pairs.splits}


def get_batch_size(config: TranslationConfig) -> int:
    """Return the number of tokens per step, over all processes."""
    return config.batch_size or DEFAULTS[config.model].batch_size


def build_training_arguments(config: TranslationConfig, model: Any, out_dir: Path) -> TrainingArguments:
    """Return the Trainer's arguments: Adam and the learning rate schedule of Vaswani et al. (2017)."""
    defaults = DEFAULTS[config.model]
    warmup = config.warmup or defaults.warmup
    evaluation: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    if config.steps is not None:
        interval = max(1, config.steps // NUM_EVALUATIONS)
        evaluation = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": interval}
        evaluation |= {"save_steps": interval, "max_steps": config.steps}
    return build_arguments(
        config,
        out_dir,
        num_train_epochs=config.epochs or defaults.epochs,
        learning_rate=config.learning_rate or (model.config.dim * warmup) ** -0.5,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=warmup,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        weight_decay=0.0,
        max_grad_norm=config.max_grad_norm,
        save_total_limit=max(2, config.average),
        load_best_model_at_end=config.average == 1,
        metric_for_best_model=f"eval_{config.choose}",
        greater_is_better=config.choose == "bleu",
        **evaluation,
    )


def describe_model(config: Any) -> list[str]:
    """Return notes about a model."""
    schemes = config.scheme
    if config.decoder_scheme != config.scheme:
        schemes = f"{config.scheme}, {config.decoder_scheme}"
    options = ", ".join(f"{name}={value}" for name, value in config.scheme_options.items())
    return [
        f"attention {schemes}{f' ({options})' if options else ''}, input positions {config.positions}",
        f"{config.vocab_size:,} subwords, shared by both languages, from the training pairs",
    ]


def describe_clipping(config: TranslationConfig, tokens: dict[str, TokenizedPairs]) -> list[str]:
    """Return a note with the number of clipped pairs, if there are any."""
    counts = [f"{pairs.num_clipped:,} {split}" for split, pairs in tokens.items() if pairs.num_clipped]
    if not counts:
        return []
    return [f"longer than {config.max_length} tokens (--max-length) and clipped: {', '.join(counts)} pairs"]


def get_sources(pairs: TokenizedPairs) -> list[Any]:
    """Return the token ids of the source sentences."""
    return [ids.tolist() for ids in np.split(pairs.source.ids, pairs.source.ends[:-1])]


def build_predictions(split: str, rows: Dataset, translations: list[str]) -> pa.Table:
    """Return a table with the split, row number, both sentences and the translation of each pair."""
    names = {"row": "row", "source": "source", "reference": "target"}
    columns: dict[str, Any] = {name: list(rows[column]) for name, column in names.items()}
    return pa.table({"split": [split] * len(rows), **columns, "predicted": translations})
