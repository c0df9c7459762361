"""Configuration of continued pre-training."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from headwise.errors import UserError
from headwise.scheme_names import PositionExtension
from headwise.training.core.config import RunConfig, absolute_if_exists

#: Options of other runs that continued pre-training does not have.
UNUSED = ("task", "epochs", "early_stopping_patience", "scheme_learning_rate")


#: The file with the configuration in the output directory.
CONFIG = "adapt.yaml"


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(RunConfig):
    """Options of continued masked-language-model pre-training on unlabelled texts."""

    MIN_VALUES: ClassVar[dict[str, int]] = {
        "steps": 1,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_length": 8,
        "save_steps": 1,
    }
    POSITIVE: ClassVar[tuple[str, ...]] = ("learning_rate",)
    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = ("warmup_steps", "weight_decay")

    model: str = ""
    """A Hugging Face encoder, by name or directory."""
    data: tuple[str, ...] = ()
    """File or files with texts: CSV, TSV, JSONL, Parquet or Excel, or .txt with one text per line."""
    dev: tuple[str, ...] = ()
    """File or files with texts on which the loss is measured; by default every 20th text of --data, which is then not
    trained on."""
    text: str | None = None
    """Name of the text column; detected by default."""
    max_length: int | None = None
    """Tokens per block: texts are joined and divided into blocks of this length; by default 512, or fewer if the model
    reads fewer."""
    extend_positions: PositionExtension | None = None
    """Give the model positions for --max-length tokens, if it has fewer: tile repeats its table, interpolate stretches
    it, repeat-last repeats its last row. For rotary positions: interpolate or yarn."""
    mlm_probability: float = 0.15
    """Share of the tokens that are masked."""
    steps: int = 1000
    """Number of optimizer steps."""
    learning_rate: float | None = 5e-5
    """Peak learning rate of AdamW, decayed linearly to 0."""
    batch_size: int | None = 16
    """Blocks per forward and backward pass, over all processes."""
    gradient_accumulation_steps: int = 1
    """Number of batches per optimizer step."""
    gradient_checkpointing: bool = False
    """Compute the activations of each layer again in the backward pass, which takes less memory and more time."""
    warmup_steps: float = 0.06
    """Steps in which the learning rate increases from 0, or their share of all steps if below 1."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    save_steps: int | None = None
    """Steps between two checkpoints, at which the loss on dev is computed; by default a tenth of --steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise UserError("MODEL is required: a Hugging Face encoder, by name or directory")
        if not self.data:
            raise UserError("--data is required: a file with texts")
        if not 0 < self.mlm_probability < 1:
            raise UserError(f"--mlm-probability must be above 0 and below 1, got {self.mlm_probability:g}")
        if self.extend_positions is not None and self.max_length is None:
            raise UserError("--extend-positions requires --max-length: the number of tokens to read")

    def resolve_paths(self) -> Self:
        return replace(super().resolve_paths(), dev=tuple(map(absolute_if_exists, self.dev)))

    @property
    def checkpoint_steps(self) -> int:
        """The number of steps between two checkpoints."""
        return self.save_steps or max(1, self.steps // 10)
