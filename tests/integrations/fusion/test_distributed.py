"""DDP: two processes train a fused model as one process trains the original."""

from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import headwise as hw
from tests.guidance.test_integrations import wait_for_result
from tests.integrations.fusion.cases import CASES, Case, build_model
from tests.robustness.launcher import free_port

NAMES = ("deberta-v3", "wav2vec2-bert")
STEPS, LEARNING_RATE = 2, 0.05


def loss_of_part(model: Any, case: Case, part: int) -> Tensor:
    """Return the loss of a batch; each process has its own one, with padding."""
    torch.manual_seed(part)
    real, batch = case.batch(case_config(model), 11, True)
    loss: Tensor = model(**batch)[0][real].square().mean()
    return loss


def case_config(model: Any) -> Any:
    return getattr(model, "module", model).config


def train(model: Any, case: Case, parts: list[int]) -> None:
    """Train a model with the mean loss of some batches."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of_part(model, case, part) for part in parts]).mean().backward()
        optimizer.step()


def train_fused_models(rank: int, port: int, results: Any) -> None:
    """Train fused models with DDP. The first process returns the gradients of the last step and the weights."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    trained = {}
    for name in NAMES:
        model = build_model(CASES[name]).train()
        hw.fuse_attention(model, verbose=False)
        train(DistributedDataParallel(model, find_unused_parameters=True), CASES[name], [rank])
        trained[name] = {key: x.numpy() for key, x in gradients_and_weights(model).items()}
    if rank == 0:
        results.put(trained)
    distributed.destroy_process_group()


def gradients_and_weights(model: Any) -> dict[str, Tensor]:
    gradients = {f"{name} gradient": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients | {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.long  # tests/robustness trains with two processes in the short form
def test_two_processes_train_fused_models_as_one_trains_the_originals() -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for both processes
    results, port = context.Queue(), free_port()
    processes = [context.Process(target=train_fused_models, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    trained = wait_for_result(results, processes)
    for process in processes:
        process.kill()  # it may wait for gloo's threads forever at its exit, after all work is done
        process.join()
    for name in NAMES:
        model = build_model(CASES[name]).train()
        train(model, CASES[name], [0, 1])
        expected = gradients_and_weights(model)
        actual = {key: torch.as_tensor(x) for key, x in trained[name].items()}
        unused = actual.keys() - expected.keys()
        assert not any(bool(actual.pop(key).any()) for key in unused), "DDP gives unused parameters zeros as gradients"
        assert any(key.endswith(" gradient") for key in expected)
        torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-8)
