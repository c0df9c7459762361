"""Guides for sentence-transformers' CrossEncoderTrainer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from headwise.guidance.guided import guiding
from headwise.guides import Guide


class GuidedLoss(nn.Module):
    """A loss for sentence-transformers' CrossEncoder that adds guides. The trainer logs each of them by name.

    The model is guided from the creation of the loss until `close`, or until the end of a `with` block. Evaluation is
    not affected.

    Args:
        loss: a loss of sentence-transformers for a CrossEncoder, such as `BinaryCrossEntropyLoss(model)`.
        guides: the guides to add.

    Example:
        ```python
        from sentence_transformers.cross_encoder import CrossEncoderTrainer
        from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

        with hw.GuidedLoss(BinaryCrossEntropyLoss(model), [hw.guides.MapDiscrimination("auto")]) as loss:
            CrossEncoderTrainer(model=model, train_dataset=pairs, loss=loss).train()
        ```
    """

    def __init__(self, loss: nn.Module, guides: Sequence[Guide]) -> None:
        super().__init__()
        model = getattr(loss, "model", None)
        if not isinstance(model, nn.Module):
            raise TypeError(f"loss must be a loss of sentence-transformers with a model; got {type(loss)!r}")
        self.loss = loss
        self._context = guiding(model, guides)
        self._guided = self._context.__enter__()

    @property
    def model(self) -> Any:
        return self.loss.model

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | dict[str, Tensor]:
        task_loss: Tensor = self.loss(*args, **kwargs)
        if not self._guided.is_recording:
            return task_loss
        return {"task": task_loss, **self._guided.losses(task_loss)}

    def close(self) -> None:
        """Stop guiding the model."""
        self._context.__exit__(None, None, None)

    def __enter__(self) -> "GuidedLoss":
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
