"""`with guiding(model, guides)`: guides in any training loop."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.guidance.auto_weight import AutoWeight
from headwise.guides import ForwardRecord, Guide
from headwise.integrations import (
    LayerRecord,
    RecordField,
    UnsupportedAttentionError,
    recording,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations import recording_output_attentions as maps_of
from headwise.integrations.deferred import DeferredBatch, DeferredReceived
from headwise.integrations.hf_attention import compare, outputs_of


class Guided:
    """Listens to a model's layers in training, and turns what it heard into a loss.

    Attributes:
        terms: every guide's last term by name, unweighted and without a graph, for logs.
    """

    def __init__(self, model: nn.Module, guides: Sequence[Guide]) -> None:
        if not isinstance(guides, Sequence) or not all(isinstance(guide, Guide) for guide in guides):
            raise TypeError(f"guides must be a list of guides such as MapDiscrimination(0.01), got {guides!r}")
        if not guides:
            raise ValueError("guides must be at least one")
        names = [guide.name for guide in guides]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"two guides are called {repeated.pop()!r}: give one of them a name")
        self.model, self.guides = model, tuple(guides)
        self.required_fields = frozenset[RecordField]().union(*(guide.needs for guide in guides))
        self.terms: dict[str, Tensor] = {}
        self._layers: list[LayerRecord] = []
        self._bunch = DeferredBatch()  # those of them that wait for what their tokens receive
        self._inputs: dict[str, Any] = {}
        self._open = False  # between a forward pass and its loss
        self._entered = False  # between the model and the base model inside it
        self._always = False
        self._balance = AutoWeight()
        self.over = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Guided":
        """What a copy of the model gets, which is not guided: somebody who listens no more."""
        copied = copy.copy(self)
        copied.model, copied._layers, copied._bunch, copied._inputs = nn.Identity(), [], DeferredBatch(), {}
        copied.over = True
        return copied

    @property
    def is_recording(self) -> bool:
        """In training only, so that evaluation costs nothing."""
        return not self.over and (self._always or self.model.training)

    def begin(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A forward pass begins: forget the last one. Returns the inputs without what is meant for guides alone.

        It begins with the model, or with the base model inside it, since some call a model's `forward` by itself.
        """
        if not self.over and (part is self.model or not self._entered):
            self._forget()
            names = inspect.signature(part.forward).parameters if args else ()
            self._inputs, self._open = dict(zip(names, args, strict=False)) | kwargs, True
        self._entered = part is self.model
        own = {key for guide in self.guides for key in guide.keys}
        return args, {name: x for name, x in kwargs.items() if name not in own}

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        if self._open:  # else a checkpointed layer is computed again, in the backward pass
            self._layers.append(heard)
            if isinstance(heard.receiving, DeferredReceived):
                self._bunch.add(heard.receiving)

    def _forget(self) -> None:
        self._layers, self._inputs, self._open = [], {}, False
        self._bunch.forget()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: the weights of `auto` guides, and how often they were used."""
        return {
            "step": self._balance.step,
            "weights": {guide.name: guide.weight for guide in self.guides if guide.auto},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._balance.step = state["step"]
        for guide in self.guides:
            if guide.auto:
                guide.weight = state["weights"][guide.name]

    def loss(self, task: Tensor | None = None, *, progress: float = 0.0) -> Tensor:
        """The sum of all weighted terms for the last forward pass; add it to the task's loss. See `losses`."""
        first, *others = self.losses(task, progress=progress).values()
        return sum(others, start=first)

    def losses(self, task: Tensor | None = None, *, progress: float = 0.0) -> dict[str, Tensor]:
        """Every guide's weighted term for the last forward pass, by name.

        Args:
            task: the task's loss, which guides with the weight `auto` are measured by.
            progress: the share of training that is over, 0 to 1, for guides with a schedule.

        Raises:
            ValueError: a guide has the weight `auto`, and the task's loss was not given.
            RuntimeError: there was no forward pass in training mode since the last call, or it kept no graph.
        """
        if not self._layers:
            raise RuntimeError(
                "no attention was heard since the last loss(): first call the model in training mode, inside guiding(…)"
            )
        self._bunch.find()
        observed = ForwardRecord(self._layers, self._inputs)
        self._forget()
        layers = observed.layers
        if torch.is_grad_enabled() and not layers[-1].receiving.requires_grad and needs_gradient(self.model):
            raise RuntimeError(
                "what heads do carries no gradient. Re-entrant gradient checkpointing drops it: use "
                "gradient_checkpointing_kwargs={'use_reentrant': False}, or train the layers that are guided"
            )
        terms = {guide: guide(observed) for guide in self.guides}
        self.terms = {guide.name: term.detach() for guide, term in terms.items()}
        automatic = {guide: term for guide, term in terms.items() if guide.auto}
        if automatic and torch.is_grad_enabled():
            if not isinstance(task, Tensor) or not task.requires_grad:
                name = next(iter(automatic)).name
                raise ValueError(f"{name} has the weight 'auto': give guided.loss(…) the task's loss, with its graph")
            if self._balance.due():
                self._balance.update(task, automatic, [layer.q for layer in layers if layer.q.requires_grad])
            self._balance.step += 1
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

    Inside, the model's attention goes through ours, with the same outputs, but for those at padding tokens, which
    nothing reads and which may be zeros in training; on leaving, also by an exception, it is as it was. The backward
    pass belongs inside too where gradient checkpointing computes layers again.

    Args:
        model: a `PreTrainedModel`, or what PEFT, DDP, `torch.compile` or sentence-transformers made of one.
        guides: what to push heads towards; of an encoder and decoder, the encoder's heads. Where the model runs several
            times before `guided.loss(…)`, the last one counts.
        example: a batch to try the model on at the start; by default transformers' own dummy inputs.
        check: whether to compare the outputs with the model's own at the start.
        output_attentions: read the maps that the model returns itself, after dropout, N × N memory a head: for
            models that never ask the interface, such as MPNet and DeBERTa.

    Raises:
        NotThroughTheInterface: the model's attention never asks transformers' AttentionInterface.

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
            "DataParallel runs copies of a model in threads, which cannot be told apart: use DDP (torchrun)"
        )
    inner = unwrap_model(model)
    guided = Guided(inner, guides)
    unheard = next((guide.name for guide in guides if output_attentions and "states" in guide.needs), None)
    if unheard is not None:
        raise ValueError(f"{unheard} needs values or outputs of heads, which a model's own maps do not tell")
    before = outputs_of(inner, example) if check else None
    with ExitStack() as ways:
        for way in (
            [maps_of(inner, guided)] if output_attentions else [use_headwise_attention(inner), recording(inner, guided)]
        ):
            ways.enter_context(way)
        hooks = [
            part.register_forward_pre_hook(guided.begin, with_kwargs=True)
            for part in dict.fromkeys([inner, inner.base_model])
        ]
        try:
            if before is not None:
                guided._always = True
                after = outputs_of(inner, example)
                heard, guided._always = len(guided._layers), False
                guided._forget()
                if not heard:
                    raise UnsupportedAttentionError(inner)
                compare(inner, before, after)
            yield guided
        finally:
            for hook in hooks:
                hook.remove()
            guided._forget()


def needs_gradient(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())
