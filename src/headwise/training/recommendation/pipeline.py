"""The recommendation pipeline."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor
from transformers import EarlyStoppingCallback

from headwise.tasks.metrics import clicks
from headwise.tasks.metrics.clicks import METRICS, ClickMetrics
from headwise.tasks.mind import MIND, Split
from headwise.training.core.arguments import build_encoder_arguments, get_batch_size
from headwise.training.core.card import UNKNOWN, Card, describe_base_model, short_name
from headwise.training.core.defaults import MIN_PATIENCE, Settings, fill_unset
from headwise.training.core.distributed import state
from headwise.training.core.environment import autocast, get_device
from headwise.training.core.metrics import Evaluation, SplitResult
from headwise.training.core.pipeline import ModelBundle, Pipeline
from headwise.training.core.pretrained import is_scheme
from headwise.training.core.run_settings import evaluated_splits
from headwise.training.recommendation.batches import ClickDataset
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.data import RecommendationData, fingerprint, load_data
from headwise.training.recommendation.evaluate import evaluate
from headwise.training.recommendation.inference import open_inspected
from headwise.training.recommendation.model import build_model
from headwise.training.recommendation.predict import predict
from headwise.training.recommendation.ranking import (
    ScoredImpressions,
    compute_baselines,
    mean_metrics,
    read_oracle,
    score_by_model,
    sum_metrics,
)
from headwise.training.recommendation.titles import Titles, tokenize_titles
from headwise.training.recommendation.trainer import RecommendationTrainer

LOADING_CODE = """\
from transformers import AutoTokenizer
from headwise.models import HeadwiseForRecommendation

model = HeadwiseForRecommendation.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")

news = model.news(**tokenizer(titles, padding=True, return_tensors="pt"))  # a vector for each title
users = model.users(news[history][None], mask)  # from clicked news, the latest last
scores = users @ news.T"""


@dataclass(kw_only=True)
class RecommendationBundle(ModelBundle):
    """A recommender with its tokenizer, the tokenized titles, and its word vectors before training."""

    titles: Titles
    initial_word_vectors: Tensor


class RecommendationPipeline(Pipeline[RecommendationConfig, RecommendationData, RecommendationBundle]):
    """Click logs in MIND's layout."""

    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    open_inspected = staticmethod(open_inspected)

    def load(self) -> RecommendationData:
        return load_data(self.config)

    def fill_unset(self, data: RecommendationData) -> RecommendationConfig:
        """Fill in the settings of MIND, which do not depend on the size of the log."""
        defaults = MIND.from_scratch if is_scheme(self.config.model) else MIND.fine_tuning
        settings = Settings(defaults.learning_rate, defaults.batch_size, defaults.epochs, warmup_steps=0.05)
        return fill_unset(self.config, settings, len(data.impressions.rows))

    def build(self, data: RecommendationData, scratch_dir: Path) -> RecommendationBundle:
        news = data.log.news
        model, tokenizer, notes = build_model(self.config, news, data.impressions.is_seen)
        titles = tokenize_titles(tokenizer, news.data, self.config.title_length)
        embeddings: Any = model.get_input_embeddings()
        return RecommendationBundle(
            model=model,
            tokenizer=tokenizer,
            notes=[*notes, *describe_data(data, titles, self.config)],
            titles=titles,
            initial_word_vectors=embeddings.weight.detach().clone(),  # for a baseline; training changes them
        )

    def build_trainer(
        self, data: RecommendationData, bundle: RecommendationBundle, out_dir: Path
    ) -> RecommendationTrainer:
        config, impressions = self.config, data.impressions
        dev = data.log.splits.get("dev")
        return RecommendationTrainer(
            model=bundle.model,
            args=build_encoder_arguments(config, out_dir, dev_metric=MIND.primary if dev is not None else None),
            train_dataset=ClickDataset(
                data.log.splits["train"],
                impressions.rows,
                bundle.titles,
                history=config.history,
                negatives=config.negatives,
                seed=config.seed,
            ),
            eval_dataset=dev,
            callbacks=[EarlyStoppingCallback(config.early_stopping_patience or MIN_PATIENCE)]
            if dev is not None
            else [],
            batch_size=get_batch_size(config),
            scheme_learning_rate=config.scheme_learning_rate,
            row_numbers=impressions.rows,
            history_lengths=np.minimum(impressions.history_lengths, config.history),
            compute_dev_metrics=partial(self.compute_metrics, bundle, dev) if dev is not None else None,
        )

    def compute_metrics(self, bundle: RecommendationBundle, split: Split, model: Any) -> dict[str, float]:
        """Compute the metrics of a model on a split."""
        return mean_metrics(sum_metrics(self.score(bundle, split, model)))

    def score(self, bundle: RecommendationBundle, split: Split, model: Any) -> ScoredImpressions:
        """Score all candidates of a split."""
        precision = partial(autocast, self.config, get_device())
        return score_by_model(model, split, bundle.titles, history=self.config.history, precision=precision)

    def evaluate_splits(self, data: RecommendationData, bundle: RecommendationBundle, trainer: Any) -> Evaluation:
        """Evaluate all splits with labels. The main process does so; the others wait."""
        results: dict[str, SplitResult] = {}
        counts: dict[str, dict[str, int]] = {}
        labelled = [name for name, split in data.log.splits.items() if split.labelled]
        for name in evaluated_splits(labelled) if state().is_main_process else ():
            split = data.log.splits[name]
            totals = ClickMetrics()
            predictions = build_predictions(name, self.score(bundle, split, trainer.model), totals)
            baselines = compute_baselines(
                split,
                click_counts=data.impressions.click_counts,
                word_vectors=bundle.initial_word_vectors.to(bundle.model.device),
                titles=bundle.titles,
                history=self.config.history,
            )
            results[name] = SplitResult(
                metrics=mean_metrics(totals),
                standard_error=totals.standard_error(),
                predictions=predictions,
                fingerprint=fingerprint(data.log, name),
                baselines=baselines | read_oracle(Path(self.config.data[0]), name),
            )
            counts[name] = totals.impression_counts
        return Evaluation(results, {"counts": counts})

    def describe(self, data: RecommendationData, bundle: RecommendationBundle, metrics: dict[str, Any]) -> Card:
        return Card(
            header={
                "library_name": "headwise",
                "tags": ["headwise", "recommendation"],
                **({"license": UNKNOWN} if is_scheme(self.config.model) else describe_base_model(self.config.model)),
            },
            title=f"{short_name(self.config.model)} for news recommendation",
            description="A news recommender based on titles and clicks.",
            error_method="its variance over impressions",
            loading_code=LOADING_CODE,
            usage="`headwise predict PATH LOG --out prediction.zip` ranks the candidates of a log.",
        )


def build_predictions(name: str, scored: ScoredImpressions, totals: ClickMetrics) -> pa.Table:
    """Return a table with the metrics of each impression, and add them to `totals`."""
    schema = pa.schema([("split", pa.string()), ("row", pa.int64()), *((metric, pa.float32()) for metric in METRICS)])
    tables, start = [], 0
    for part, scores in scored:
        totals.add(scores, part.clicked, part.offsets)
        count = len(part.offsets) - 1
        values = clicks.compute_per_impression(scores, part.clicked, part.offsets)
        columns = {"split": [name] * count, "row": range(start, start + count), **values}
        tables.append(pa.table(columns, schema=schema))
        start += count
    return pa.concat_tables(tables)


def describe_data(data: RecommendationData, titles: Titles, config: RecommendationConfig) -> list[str]:
    """Return notes about skipped impressions, truncated histories and truncated titles."""
    impressions, counts = data.impressions, data.log.splits["train"].counts
    notes = []
    if impressions.num_skipped:
        notes.append(
            f"{impressions.num_skipped:,} training impressions with only clicks ({counts['only_clicks']:,}) or only "
            f"non-clicks ({counts['only_non_clicks']:,}) were skipped"
        )
    if num_empty := counts["without_history"]:
        notes.append(f"{num_empty:,} training impressions have no history: their users share one learned vector")
    if num_long := int((impressions.history_lengths > config.history).sum()):
        notes.append(f"{num_long:,} histories are longer than {config.history} (--history): the latest clicks are used")
    if titles.num_truncated:
        notes.append(
            f"{titles.num_truncated:,} titles are longer than {config.title_length} tokens (--title-length) "
            "and truncated"
        )
    return notes
