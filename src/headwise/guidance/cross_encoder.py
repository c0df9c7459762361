"""Guides in sentence-transformers' CrossEncoderTrainer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from headwise.guidance.guided import guiding
from headwise.guides import Guide


class GuidedLoss(nn.Module):
    """A loss of sentence-transformers' CrossEncoder with guides, each of which the trainer logs by name.

    The model is guided from now on until `close`, or until the end of a `with` block; in evaluation it runs as it was.

    Args:
        loss: a loss for a CrossEncoder, such as `BinaryCrossEntropyLoss(model)`.
        guides: what to push heads towards.

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
            raise TypeError(f"loss must be a loss of sentence-transformers, which knows its model; got {type(loss)!r}")
        self.loss = loss
        self._context = guiding(model, guides)
        self._guided = self._context.__enter__()

    @property
    def model(self) -> Any:
        return self.loss.model

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | dict[str, Tensor]:
        task: Tensor = self.loss(*args, **kwargs)
        if not self._guided.is_recording:
            return task
        return {"task": task, **self._guided.losses(task)}

    def close(self) -> None:
        """Let the model be as it was."""
        self._context.__exit__(None, None, None)

    def __enter__(self) -> "GuidedLoss":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
