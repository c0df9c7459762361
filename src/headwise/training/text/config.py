"""Configuration of the text pipeline."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from headwise.errors import UserError
from headwise.scheme_names import PositionExtension
from headwise.training.core.config import EncoderConfig, absolute_if_exists, option_name
from headwise.training.core.model_names import may_have_scheme

#: Options that apply only to models trained from scratch.
FROM_SCRATCH_ONLY = (
    "vectors",
    "scheme_options",
    "heads",
    "head_dim",
    "layers",
    "word_dim",
    "positions",
    "position_scale",
    "pooling",
    "hierarchy",
    "segment_length",
    "dropout",
)

#: Options that have no effect without guides.
GUIDE_OPTIONS = ("guide_reduction", "guide_schedule", "guide_share")


#: Metrics that can select the best epoch.
MetricName = Literal[
    "accuracy", "macro_f1", "micro_f1", "exact_match", "rmse", "mae", "pearson", "f1", "mrr", "map", "ndcg", "loss"
]
#: The values of `--metric-for-best-model` by label type.
DEV_METRICS = {
    "classification": ("accuracy", "macro_f1", "loss"),
    "multi-label": ("micro_f1", "macro_f1", "exact_match", "loss"),
    "regression": ("rmse", "mae", "pearson", "loss"),
    "tokens": ("f1", "loss"),
    "ranking": ("mrr", "map", "ndcg", "loss"),
}
#: Ways to encode texts that are longer than the model's input.
LongText = Literal["truncate", "head-tail", "windows", "extend"]
#: The files of a ranking.
RANKING_FILES = ("queries", "documents", "relevance")


@dataclass(frozen=True, kw_only=True)
class TextConfig(EncoderConfig):
    """Options for labelled texts: classes, ratings, tags, text pairs and rankings."""

    MIN_VALUES: ClassVar[dict[str, int]] = EncoderConfig.MIN_VALUES | {
        "heads": 1,
        "head_dim": 1,
        "layers": 1,
        "word_dim": 1,
        "max_length": 1,
        "attention_window": 1,
        "global_tokens": 0,
        "batch_tokens": 1,
        "segment_length": 1,
        "lora_r": 1,
        "lora_alpha": 1,
    }
    POSITIVE: ClassVar[tuple[str, ...]] = (*EncoderConfig.POSITIVE, "position_scale", "guide_share")

    data: tuple[str, ...] = ()
    """CSV, TSV, JSONL, Parquet or Excel: one file (split 80/10/10), several files, a directory with train, dev and test
    files, or hub:OWNER/NAME."""
    train: tuple[str, ...] = ()
    """Training file or files, instead of --data."""
    dev: tuple[str, ...] = ()
    """File or files for the selection of the best epoch."""
    test: tuple[str, ...] = ()
    """File or files for the final evaluation."""
    text: str | None = None
    """Name of the text column; detected by default."""
    pair: str | None = None
    """Name of the second text column, for text pairs."""
    label: str | None = None
    """Name of the label column; detected by default."""
    label_type: Literal["classification", "multi-label", "regression", "tokens", "ranking"] = "classification"
    """Type of the labels in your own data: one class, several classes separated by |, a number, one tag per word
    (CoNLL), or relevance: a directory with queries.jsonl, corpus.jsonl and qrels."""
    queries: tuple[str, ...] = ()
    """File or files with the queries of a ranking (id, text), instead of --data."""
    documents: tuple[str, ...] = ()
    """File or files with the documents of a ranking (id, text, optionally title)."""
    relevance: tuple[str, ...] = ()
    """Files with the relevant documents of each query (query_id, document_id, score): one file, or train, dev and
    test."""
    delimiter: str | None = None
    """Delimiter of the columns of your CSV or TSV files: a character, or tab; detected by default."""
    skip_bad_rows: bool = False
    """Skip rows without a text or with an invalid label; by default they are an error."""
    rows: float | None = None
    """Train on a random subset: a number of rows, or a fraction below 1."""

    retrofit: Literal["distance-aware", "rpr", "t5-bias", "disentangled", "alibi"] | None = None
    """Add a position scheme to a Hugging Face model. Before training, it does not change the model's outputs, except
    alibi."""
    classifier: Literal["own", "first-token"] | None = None
    """Classification head of a Hugging Face model: its own (default), or W · ReLU(h) of the first token as in the
    attention-guiding paper."""
    guides: tuple[str, ...] = ()
    """Guides for attention heads, as NAME, NAME=WEIGHT or NAME@LAYERS=WEIGHT. Weights that are not given are set
    automatically. Names: mdg, pdg, first, next, previous, delimiter, period, disagreement, pmi, word-similarity,
    dependency.
    Example: mdg@6=0.01 guides layer 6; the first layer is 0."""
    guide_reduction: Literal["mean", "paper", "released"] = "mean"
    """How mdg and pdg add up heads; weights of different reductions are not comparable: mean is independent of the
    number of heads, paper is the loss as printed (equations 11 and 12), released is that of the authors' code."""
    guide_schedule: Literal["constant", "linear", "warm-up"] = "constant"
    """How the weights of guides change during training: linear decreases them to 0, warm-up increases them from 0 over
    the first tenth."""
    guide_share: float | None = None
    """Strength of guides with automatic weights: the norm of their gradient with respect to the queries, divided by
    that of the task. Several guides divide it equally. By default 0.02."""
    vectors: Path | None = None
    """Pre-trained word vectors (from scratch): GloVe or word2vec text format, optionally gzipped, or .npz."""
    scheme_options: tuple[str, ...] = ()
    """Options of the scheme (from scratch), such as mapping=sigmoid, adjust=late-add, k=8 or values=false."""
    heads: int = 16
    """Number of attention heads (from scratch)."""
    head_dim: int = 16
    """Dimension of each head (from scratch)."""
    layers: int = 1
    """Number of Transformer layers (from scratch)."""
    word_dim: int = 300
    """Dimension of word embeddings without --vectors (from scratch)."""
    positions: Literal["sinusoidal", "learned", "none"] | None = None
    """Position embeddings added to the input (from scratch); default: sinusoidal for plain, none for other schemes."""
    position_scale: float | None = None
    """Factor of sinusoidal position embeddings (from scratch); by default they get 1/√2 of the mean norm of the word
    embeddings, as in Vaswani et al. (2017)."""
    pooling: Literal["additive", "cls"] = "additive"
    """How token vectors are pooled into a text vector (from scratch)."""
    pairs: Literal["joint", "siamese"] = "siamese"
    """joint encodes a text pair as one sequence, siamese encodes each text separately (from scratch)."""
    hierarchy: tuple[int, int] | None = None
    """Encode long texts sentence by sentence (from scratch): maximum words per sentence and sentences per text."""
    segment_length: int | None = None
    """Recurrence of Transformer-XL (from scratch): encode texts in segments of this number of tokens, which also attend
    to the previous segment; by default the whole text at once."""
    dropout: float = 0.2
    """Dropout probability (from scratch)."""

    label_smoothing_factor: float = 0.0
    """Label smoothing: this probability is distributed over all classes."""
    class_weights: Literal["balanced"] | None = None
    """balanced: weight the loss so that all classes count the same, for data with rare classes; combine it with
    --metric-for-best-model macro_f1."""
    metric_for_best_model: MetricName | None = None
    """The metric of dev that selects the best epoch; by default the primary metric of the label type."""
    scheme_learning_rate: float | None = None
    """Learning rate of the parameters of the position scheme (w and v of distance-aware, tables, biases), with the same
    schedule; by default that of the model, and in retrofitted models 10 times --learning-rate."""
    max_length: int | None = None
    """Maximum tokens per text, see --long-text for longer ones; by default 256, or fewer if the model reads fewer."""
    long_text: LongText = "truncate"
    """Texts longer than --max-length: truncate keeps their start, head-tail their first quarter and their end, windows
    reads all of them in overlapping windows and averages the scores; of a text pair, the longer text is divided. extend
    gives a Hugging Face model positions for --max-length tokens, if it has fewer, and truncates."""
    extend_positions: PositionExtension | None = None
    """How --long-text extend computes new positions: tile repeats the table (default), interpolate stretches it,
    repeat-last repeats its last row. For rotary positions: interpolate (default) or yarn."""

    attention_window: int | None = None
    """Limit the attention of a Hugging Face encoder to this number of tokens before and after each token, and to
    --global-tokens, so that its cost is proportional to the length; by default there is no limit."""
    global_tokens: int = 1
    """Number of first tokens that attend to all tokens, and that all tokens attend to, with --attention-window."""
    batch_tokens: int | None = None
    """Maximum tokens of a batch, with padding, for texts of very different lengths: batches of long texts then have
    fewer rows than --batch-size."""
    gradient_checkpointing: bool = False
    """Compute the activations of each layer again in the backward pass, which takes less memory and more time."""
    pack: bool = False
    """Concatenate the texts of a batch instead of padding them, so that the layers compute no padding. Losses and
    predictions are the same."""

    lora: bool = False
    """Fine-tune low-rank updates (LoRA) and the classification head instead of all weights; requires PEFT."""
    lora_r: int = 8
    """Rank of the updates."""
    lora_alpha: int = 16
    """Scale of the updates, which are multiplied by alpha / rank."""
    lora_target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt; by default those that PEFT knows for the model, such as query and value."""
    tune: bool = False
    """Search the learning rate on dev before the run: 5 trials of at most 500 steps each."""

    def __post_init__(self) -> None:
        if self.lora and self.scheme_learning_rate is not None:
            raise UserError(
                "--lora and --scheme-learning-rate exclude each other: LoRA freezes the parameters of schemes"
            )
        super().__post_init__()
        if self.hierarchy is not None and min(self.hierarchy) < 1:
            raise UserError(f"--hierarchy must be at least 1 and 1, got {' and '.join(map(str, self.hierarchy))}")
        for name in ("dropout", "label_smoothing_factor"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{option_name(name)} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.long_text == "extend" and self.max_length is None:
            raise UserError("--long-text extend requires --max-length: the number of tokens to read")
        if self.extend_positions is not None and self.long_text != "extend":
            raise UserError("--extend-positions requires --long-text extend")
        if self.global_tokens != TextConfig.global_tokens and self.attention_window is None:
            raise UserError("--global-tokens requires --attention-window")
        if self.pack and self.attention_window is not None:
            raise UserError("--pack cannot be combined with --attention-window")
        if self.pack and self.segment_length is not None:
            raise UserError("--pack cannot be combined with --segment-length")
        if self.pack and self.guides:
            raise UserError("--pack cannot be combined with --guides, which read the attention of padded batches")
        if self.tune and self.learning_rate is not None:
            raise UserError("--tune searches the learning rate; leave out --learning-rate")
        if self.rows is not None and not (0 < self.rows < 1 or (self.rows >= 2 and self.rows == int(self.rows))):
            raise UserError(f"--rows must be a whole number of at least 2 or a fraction below 1, got {self.rows:g}")
        if self.task is not None:
            for name in (
                "train",
                "dev",
                "test",
                "text",
                "pair",
                "label",
                "label_type",
                "delimiter",
                "skip_bad_rows",
                *RANKING_FILES,
            ):
                if getattr(self, name) != self.default_value(name):
                    raise UserError(
                        f"{option_name(name)} is for your own data; --task {self.task} defines the layout of --data"
                    )
        ranking_files = [option_name(name) for name in RANKING_FILES if getattr(self, name)]
        if ranking_files and self.label_type not in ("ranking", "classification"):
            raise UserError(f"{ranking_files[0]} is for rankings, not for --label-type {self.label_type}")
        if self.task is None and not (self.data or self.train or self.dev or self.test or ranking_files):
            raise UserError(
                "--data or --task is required: --data FILE for your own texts, --task NAME for a built-in task "
                "(listed by headwise tasks)"
            )

    @property
    def has_scheme_parameters(self) -> bool:
        if self.retrofit is not None:
            return self.retrofit != "alibi"
        return super().has_scheme_parameters or (not self.lora and may_have_scheme(self.model))

    def resolve_paths(self) -> Self:
        return replace(
            super().resolve_paths(),
            train=tuple(map(absolute_if_exists, self.train)),
            dev=tuple(map(absolute_if_exists, self.dev)),
            test=tuple(map(absolute_if_exists, self.test)),
            queries=tuple(map(absolute_if_exists, self.queries)),
            documents=tuple(map(absolute_if_exists, self.documents)),
            relevance=tuple(map(absolute_if_exists, self.relevance)),
            vectors=None if self.vectors is None else self.vectors.absolute(),
        )


def check_label_options(config: TextConfig, label_type: str) -> None:
    """Check that the label type has the options of the loss and the metric that selects the epoch.

    Raises:
        UserError: it has not.
    """
    if config.class_weights is not None and label_type == "regression":
        raise UserError("--class-weights does not apply to ratings, which have no classes")
    if config.label_smoothing_factor and label_type in ("regression", "multi-label"):
        raise UserError(f"--label-smoothing-factor does not apply to {label_type} labels")
    name, choices = config.metric_for_best_model, DEV_METRICS[label_type]
    if name is not None and name not in choices:
        raise UserError(f"--metric-for-best-model {name}: {label_type} labels have {', '.join(choices)}")


def check_from_scratch_options(config: TextConfig) -> None:
    """Check that a model that is trained from scratch has the options.

    Raises:
        UserError: an option is for pretrained models.
    """
    if config.retrofit is not None:
        raise UserError(f"--retrofit is for pretrained models; --model {config.model} already has a scheme")
    if config.classifier is not None:
        raise UserError(f"--classifier is for Hugging Face models, not for --model {config.model}; see --pooling")
    if config.long_text == "extend":
        raise UserError(
            "--long-text extend is for pretrained models; models that are trained from scratch read any --max-length"
        )
    if config.attention_window is not None:
        raise UserError("--attention-window is for Hugging Face encoders")


def is_automatic(guide: str) -> bool:
    """Return whether a value of `--guides` has an automatic weight.

    >>> is_automatic("mdg@6"), is_automatic("mdg=auto"), is_automatic("mdg=0.01")
    (True, True, False)
    """
    return guide.partition("=")[2] in ("", "auto")
