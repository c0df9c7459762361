"""The context manager `guiding`, which adds guides to any training loop."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.guidance.auto_weight import AutoWeight
from headwise.guides import ForwardRecord, Guide
from headwise.integrations import (
    LayerRecord,
    RecordField,
    UnsupportedAttentionError,
    recording,
    recording_output_attentions,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations.fusion import fused_example
from headwise.integrations.model_utils import check_same_outputs, fails_with_headwise, run_example


class Guided:
    """The recorder of a guided model. It records forward passes and computes the guides' losses from the last one.

    Attributes:
        terms: the term of each guide in the last call of `loss` or `losses`, by name, unweighted and detached.
    """

    def __init__(self, model: nn.Module, guides: Sequence[Guide]) -> None:
        self.model, self.guides = model, check_guides(guides)
        if not guides:
            raise ValueError("guides must contain at least one guide")
        self.required_fields = frozenset[RecordField]().union(*(guide.required_fields for guide in guides))
        self.terms: dict[str, Tensor] = {}
        self.is_closed = False
        self._layers: list[LayerRecord] = []
        self._inputs: dict[str, Any] = {}
        self._in_forward = False  # between the start of a forward pass and its loss
        self._in_outer_model = False  # the model's forward has started, but not that of its base model
        self._records_in_eval = False
        self._auto_weight = AutoWeight()
        self._eager_step = ExitStack()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Guided":
        """Return a closed recorder. A copy of a guided model is not guided."""
        copied = copy.copy(self)
        copied.model, copied._layers, copied._inputs, copied._eager_step = nn.Identity(), [], {}, ExitStack()
        copied.is_closed = True
        return copied

    @property
    def is_recording(self) -> bool:
        """Whether layers are recorded now: in training mode, and during the check on entry."""
        return not self.is_closed and (self._records_in_eval or self.model.training)

    def start_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Start to record a forward pass.

        This is a forward pre-hook of the model and of its base model, because the base model may be called directly,
        and of a wrapper that calls the model's `forward` without its hooks.

        Returns:
            The arguments of the module, without inputs that are only for guides.
        """
        is_base = module is not self.model and module is getattr(self.model, "base_model", None)
        if not self.is_closed and not (is_base and self._in_outer_model):
            self._clear()
            if args and isinstance(args[0], Mapping):  # the features of sentence-transformers
                self._inputs = {**args[0], **kwargs}
            else:
                names = inspect.signature((module if is_base else self.model).forward).parameters if args else ()
                self._inputs = dict(zip(names, args, strict=False)) | kwargs
            self._in_forward = True
        self._in_outer_model = not is_base
        guide_keys = {key for guide in self.guides for key in guide.input_keys}
        return args, {name: x for name, x in kwargs.items() if name not in guide_keys}

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        """Record one layer. Checkpointed layers, which run again in the backward pass, are recorded once."""
        if self._in_forward or self._records_in_eval:
            self._layers.append(record)

    def _clear(self) -> None:
        self._layers, self._inputs, self._in_forward = [], {}, False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prepare_step(self) -> None:
        """Turn the compiler off for the next step if it updates automatic weights, otherwise on.

        They are computed from gradients at the queries. Those that a compiled model returns have none, because its
        losses do not depend on the returned copies.
        """
        self._eager_step.close()
        if self._auto_weight.is_due() and any(guide.auto for guide in self.guides):
            self._eager_step.enter_context(torch.compiler.set_stance("force_eager"))

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint: the weights of automatic guides and the step."""
        return {
            "step": self._auto_weight.step,
            "weights": {guide.name: guide.weight for guide in self.guides if guide.auto},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `state_dict`.

        Raises:
            ValueError: the state is of other guides.
        """
        names = [guide.name for guide in self.guides if guide.auto]
        if sorted(names) != sorted(state["weights"]):
            raise ValueError(
                f"the checkpoint has automatic weights of {', '.join(state['weights']) or 'no guides'}, but the guides "
                f"with automatic weights are {', '.join(names) or 'none'}: resume with the same guides"
            )
        self._auto_weight.step = state["step"]
        for guide in self.guides:
            if guide.auto:
                guide.weight = state["weights"][guide.name]
        self._prepare_step()

    def loss(self, task_loss: Tensor | None = None, *, progress: float = 0.0) -> Tensor:
        """Compute the guides' loss of the last forward pass, the sum of `losses`. Add it to the task's loss."""
        total, *others = self.losses(task_loss, progress=progress).values()
        return sum(others, start=total)

    def losses(self, task_loss: Tensor | None = None, *, progress: float = 0.0) -> dict[str, Tensor]:
        """Compute the weighted term of each guide, by name, for the last forward pass.

        Args:
            task_loss: the task's loss, required if a guide has an automatic weight.
            progress: the fraction of training that is complete, 0 to 1, for guides with a schedule.

        Raises:
            ValueError: a guide has an automatic weight, and the task's loss is missing or does not require a gradient.
            RuntimeError: there was no forward pass in training mode since the last call, or it has no gradient.
        """
        if not self._layers:
            raise RuntimeError(
                "no attention was recorded since the last loss(): call the model in training mode, inside guiding(…)"
            )
        record = ForwardRecord(self._layers, self._inputs)
        self._clear()
        layers = record.layers
        if torch.is_grad_enabled() and is_trainable(self.model):
            for guide in self.guides:
                guided_layers = [layers[-1]] if guide.layers is None else guide.select_layers(layers)
                if not any(layer.received.requires_grad for layer in guided_layers):
                    raise RuntimeError(
                        f"the attention that {guide.name} guides has no gradient. Reentrant gradient checkpointing "
                        "drops it: pass gradient_checkpointing_kwargs={'use_reentrant': False}, or train the guided "
                        "layers"
                    )
        terms = {guide: guide(record) for guide in self.guides}
        self.terms = {guide.name: term.detach() for guide, term in terms.items()}
        auto_terms = {guide: term for guide, term in terms.items() if guide.auto}
        if auto_terms and torch.is_grad_enabled():
            if not isinstance(task_loss, Tensor) or not task_loss.requires_grad:
                name = next(iter(auto_terms)).name
                raise ValueError(f"{name} has weight='auto': call guided.loss(task_loss) with the task's loss")
            if self._auto_weight.is_due():
                self._auto_weight.update(task_loss, auto_terms, [layer.q for layer in layers if layer.q.requires_grad])
            self._auto_weight.step += 1
            self._prepare_step()
        return {guide.name: guide.weight_at(progress) * term for guide, term in terms.items()}


@contextmanager
def guiding(
    model: nn.Module,
    guides: Sequence[Guide],
    *,
    example: Mapping[str, Any] | None = None,
    check: bool = True,
    output_attentions: bool = False,
) -> Iterator[Guided]:
    """Guide a Hugging Face model in any training loop.

    Inside the context, the model runs with headwise's attention. Its outputs are the same, except those of padding
    tokens at the end of a text, which may be zeros in training. On exit, the model's own attention is restored. With
    gradient checkpointing, the backward pass must be inside the context too.

    In an encoder-decoder model, the encoder is guided. If the model runs several times before `guided.loss(…)`, only
    the last forward pass is used.

    Args:
        model: a `PreTrainedModel`. It may be wrapped by PEFT, DDP, `torch.compile` or sentence-transformers.
        guides: the guides to apply.
        example: a batch for the check on entry; by default transformers' dummy inputs, or random inputs of the part
            that `fuse_attention` has fused.
        check: whether to run the model on entry with its own and with headwise's attention, and compare the outputs.
        output_attentions: read the attention weights that the model returns, for models that do not use transformers'
            `AttentionInterface`, such as MPNet and DeBERTa. These weights include dropout and take N × N memory
            per head.

    Yields:
        The guided model; its `loss` computes the guides' loss.

    Raises:
        UnsupportedAttentionError: the model's attention does not use transformers' `AttentionInterface`, or uses a
            feature that headwise does not support.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> tiny = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
        >>> model, ids = BertForSequenceClassification(tiny).train(), torch.tensor([[1, 2, 3, 4]])
        >>> with hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]) as guided:
        ...     loss = model(input_ids=ids, labels=torch.tensor([0])).loss + guided.loss()
        ...     loss.backward()
        >>> list(guided.terms)
        ['MapDiscrimination']
    """
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "DataParallel is not supported, because it runs copies of the model in threads: use DDP (torchrun)"
        )
    inner = unwrap_model(model)
    guided = Guided(inner, guides)
    if output_attentions:
        unsupported = next((guide.name for guide in guides if "states" in guide.required_fields), None)
        if unsupported is not None:
            raise ValueError(
                f"{unsupported} reads values or outputs of heads, which output_attentions does not provide"
            )
    checked: PreTrainedModel = inner
    if check and example is None:
        checked, example = fused_example(inner) or (inner, None)
    before = run_example(checked, example) if check else None
    with ExitStack() as stack:
        if output_attentions:
            stack.enter_context(recording_output_attentions(inner, guided))
        else:
            stack.enter_context(use_headwise_attention(inner))
            stack.enter_context(recording(inner, guided))
        stack.callback(guided._clear)
        for module in dict.fromkeys([*wrappers_without_hooks(model, inner), inner, inner.base_model]):
            stack.callback(module.register_forward_pre_hook(guided.start_forward, with_kwargs=True).remove)
        if before is not None:
            guided._records_in_eval = True
            try:
                after = run_example(checked, example)
            except UnsupportedAttentionError:
                raise
            except ValueError as error:
                raise fails_with_headwise(inner, error) from error
            has_records, guided._records_in_eval = bool(guided._layers), False
            guided._clear()
            if not has_records:
                raise UnsupportedAttentionError(inner)
            check_same_outputs(inner, before, after)
        stack.callback(guided._eager_step.close)
        guided._prepare_step()
        yield guided


def check_guides(guides: Sequence[Guide]) -> tuple[Guide, ...]:
    """Return guides, or raise TypeError or ValueError if they are not a list of guides with different names."""
    if not isinstance(guides, Sequence) or not all(isinstance(guide, Guide) for guide in guides):
        raise TypeError(f"guides must be a list of guides such as MapDiscrimination(0.01), got {guides!r}")
    names = [guide.name for guide in guides]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"two guides have the name {repeated.pop()!r}: set name= for one of them")
    return tuple(guides)


def wrappers_without_hooks(model: nn.Module, inner: nn.Module) -> list[nn.Module]:
    """Return the modules of sentence-transformers that contain a model. They call its `forward` without its hooks."""
    modules = [module for module in model.modules() if type(module).__module__.startswith("sentence_transformers.")]
    return [module for module in modules if any(child is inner for child in module.children())]


def is_trainable(model: nn.Module) -> bool:
    """Return whether any parameter of a model requires a gradient."""
    return any(parameter.requires_grad for parameter in model.parameters())
