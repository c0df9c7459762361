"""Guides in the company of what people train with: autocast, torch.compile, DDP, PEFT."""

import socket
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.guidance.test_attaching import batch, build

GUIDES = [
    hw.guides.MapDiscrimination(0.5),
    hw.guides.PatternDecorrelation(0.1),
    hw.guides.First(2.0),
    hw.guides.Next(2.0),
]


def step(model: Any, inputs: dict[str, Tensor], called: Any = None) -> tuple[Tensor, list[Tensor]]:
    """The guides' loss, and every gradient of task and guides."""
    with hw.guiding(model, GUIDES) as guided:
        task = (model if called is None else called)(**inputs).logits.square().mean()
        loss = guided.loss()
        (task + loss).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return loss.detach(), gradients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_stays_near_full_precision(dtype: torch.dtype) -> None:
    model, inputs = build("bert").train(), batch()
    exact, _ = step(model, inputs)
    with torch.autocast("cpu", dtype):
        loss, gradients = step(model, inputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, atol=0.05, rtol=0.05)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_compiled_models_hear_the_same() -> None:
    torch.compiler.reset()
    model, inputs = build("bert").train(), batch()
    loss, gradients = step(model, inputs)
    compiled, of_compiled = step(model, inputs, torch.compile(model, backend="aot_eager"))
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(of_compiled, gradients, atol=1e-5, rtol=1e-4)


def test_lora_trains_under_guides() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build("bert"), peft.LoraConfig(target_modules=["query", "key"], r=2)).train()
    _, gradients = step(model, batch())
    assert gradients
    assert len(gradients) == len([p for p in model.parameters() if p.requires_grad])
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


def worker(rank: int, port: int, results: Any) -> None:
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    inputs = {name: x[rank::2] for name, x in even_batch().items()}
    model = build("bert").train()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    loss, gradients = step(model, inputs, parallel)
    torch.distributed.all_reduce(loss)
    if rank == 0:
        results.put([loss.numpy() / 2, *(gradient.numpy() for gradient in gradients)])
    torch.distributed.destroy_process_group()


def even_batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 40, (4, 9))
    mask = torch.ones_like(ids)
    mask[2:, 6:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def test_two_processes_give_what_one_gives() -> None:
    loss, gradients = step(build("bert").train(), even_batch())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=worker, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = results.get(timeout=120)
    for process in processes:
        process.join(timeout=20)
        process.kill()  # which now and then waits for gloo's threads for good, all work done
    torch.testing.assert_close(torch.as_tensor(found[0], dtype=loss.dtype), loss, atol=1e-5, rtol=1e-4)
    for mine, true in zip(found[1:], gradients, strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), true, atol=1e-5, rtol=1e-3)
