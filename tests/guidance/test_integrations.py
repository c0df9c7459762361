"""Guides together with autocast, torch.compile, DDP and PEFT."""

import socket
from queue import Empty
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import headwise as hw
from tests.integrations.tiny_models import build_batch, build_model

GUIDES = [
    hw.guides.MapDiscrimination(0.5),
    hw.guides.PatternDecorrelation(0.1),
    hw.guides.First(2.0),
    hw.guides.Next(2.0),
]


def guided_step(model: Any, inputs: dict[str, Tensor], wrapper: Any = None) -> tuple[Tensor, list[Tensor]]:
    """Return the guides' loss, and all gradients of task and guides; the forward pass goes through the wrapper."""
    with hw.guiding(model, GUIDES) as guided:
        task_loss = (model if wrapper is None else wrapper)(**inputs).logits.square().mean()
        loss = guided.loss()
        (task_loss + loss).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return loss.detach(), gradients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_close_to_full_precision(dtype: torch.dtype) -> None:
    model, inputs = build_model("bert").train(), build_batch()
    expected, _ = guided_step(model, inputs)
    with torch.autocast("cpu", dtype):
        loss, gradients = guided_step(model, inputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, atol=0.05, rtol=0.05)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.long  # tests/attention compiles layers in the short form
@pytest.mark.parametrize("padding", ["right", "left"])
def test_compiled_models_give_the_same_loss_and_gradients(padding: str) -> None:
    """With left padding, BERT's pooler reads a padding token, so that its output is part of the task's loss."""
    torch.compiler.reset()
    model, inputs = build_model("bert").train(), build_batch()
    if padding == "left":
        inputs = {name: x.flip(1) for name, x in inputs.items()}
    expected_loss, expected_gradients = guided_step(model, inputs)
    loss, gradients = guided_step(model, inputs, torch.compile(model, backend="aot_eager"))
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("compiled", ["model", "layers"])
def test_automatic_weights_of_compiled_models_are_those_of_eager_models(compiled: str) -> None:
    """The compiler is off in the first four steps, which update the weights, and on in the fifth."""
    torch.compiler.reset()
    weights = []
    for is_compiled in (False, True):
        model, guide, graphs = build_model("bert").train(), hw.guides.MapDiscrimination("auto"), CompileCounter()
        if is_compiled and compiled == "model":
            model.compile(backend=graphs)
        elif is_compiled:
            for layer in model.bert.encoder.layer:
                layer.compile(backend=graphs)
        with hw.guiding(model, [guide], check=False) as guided:
            for step in range(5):
                task_loss = model(**build_batch()).logits.square().mean()
                (task_loss + guided.loss(task_loss)).backward()
                assert bool(graphs.frame_count) == (is_compiled and step == 4)
        weights.append(guide.weight)
    assert weights[0] > 0
    assert weights[1] == pytest.approx(weights[0])


def test_lora_trains_with_guides() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build_model("bert"), peft.LoraConfig(target_modules=["query", "key"], r=2)).train()
    _, gradients = guided_step(model, build_batch())
    assert gradients
    assert len(gradients) == len([p for p in model.parameters() if p.requires_grad])
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


def distributed_step(rank: int, port: int, results: Any) -> None:
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    inputs = {name: x[rank::2] for name, x in even_batch().items()}
    model = build_model("bert").train()
    loss, gradients = guided_step(model, inputs, torch.nn.parallel.DistributedDataParallel(model))
    torch.distributed.all_reduce(loss)
    if rank == 0:
        results.put([loss.numpy() / 2, *(gradient.numpy() for gradient in gradients)])
    torch.distributed.destroy_process_group()


def even_batch() -> dict[str, Tensor]:
    """Four texts, which two processes can share evenly."""
    torch.manual_seed(1)
    ids = torch.randint(3, 40, (4, 9))
    mask = torch.ones_like(ids)
    mask[2:, 6:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def wait_for_result(results: Any, processes: list[Any]) -> Any:
    """Return the result of the processes, or fail if one of them has failed."""
    while True:
        try:
            return results.get(timeout=1)
        except Empty:
            assert not any(process.exitcode for process in processes)


@pytest.mark.long  # tests/robustness trains with two processes in the short form
def test_two_processes_give_the_same_loss_and_gradients_as_one() -> None:
    expected_loss, expected_gradients = guided_step(build_model("bert").train(), even_batch())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for both processes
    results = context.Queue()
    processes = [context.Process(target=distributed_step, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    loss, *gradients = wait_for_result(results, processes)
    for process in processes:
        process.kill()  # it may wait for gloo's threads forever at its exit, after all work is done
        process.join()
    torch.testing.assert_close(torch.as_tensor(loss, dtype=torch.float32), expected_loss, atol=1e-5, rtol=1e-4)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(torch.as_tensor(gradient), expected, atol=1e-5, rtol=1e-3)
