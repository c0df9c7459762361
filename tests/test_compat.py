"""Private parts of torch, Triton and transformers: without them, or if a self-test fails, the public way is used."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import _compat
from headwise.attention import self_test
from headwise.attention.triton_backend import launch, plan
from headwise.attention.triton_backend.launch import Launch, Tile

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "_reported", set())


def failing_test(device: torch.device) -> None:
    raise RuntimeError(f"wrong results\nmore about {device}")


class FakeCompiledKernel:
    """What Triton returns for a launch. Its direct launcher records its arguments, or fails like a changed version."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(*values: Any, stream: int) -> None:
            if self.error is not None:
                raise self.error
            self.launches.append((grid, *values, stream))

        return launch


class FakeKernel:
    """A kernel that counts its public launches."""

    def __init__(self, compiled: FakeCompiledKernel) -> None:
        self.compiled = compiled
        self.num_launches = 0

    @staticmethod
    def fn(q_ptr: Any, OPT: Any) -> None: ...

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(**arguments: Any) -> FakeCompiledKernel:
            self.num_launches += 1
            return self.compiled

        return launch


@pytest.fixture
def fake_launch(monkeypatch: pytest.MonkeyPatch) -> tuple[Launch, FakeKernel]:
    launch.parameter_names.cache_clear()
    monkeypatch.setattr(_compat, "current_stream", lambda _: 7)
    kernel = FakeKernel(FakeCompiledKernel())
    options = SimpleNamespace(fast=False, relative_shift=False)
    return Launch(kernel, (1, 2, 3), Tile(16, 16), {"OPT": options}), kernel


def use_self_test(monkeypatch: pytest.MonkeyPatch, name: str, test: Any) -> _compat.SelfTested:
    tested = _compat.SelfTested("the fast way", "the public way is used", test)
    monkeypatch.setattr(_compat, name, tested)
    return tested


def test_after_a_passed_self_test_kernels_are_launched_directly(
    fake_launch: tuple[Launch, FakeKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, kernel = fake_launch
    use_self_test(monkeypatch, "direct_launches", lambda device: None)
    q = torch.ones(1)
    for _ in range(3):
        launch({"q_ptr": q})
    assert kernel.num_launches == 1
    assert kernel.compiled.launches == [((1, 2, 3), q.data_ptr(), launch.arguments["OPT"], 7)] * 2


def test_after_a_failed_self_test_kernels_are_launched_publicly(
    fake_launch: tuple[Launch, FakeKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, kernel = fake_launch
    use_self_test(monkeypatch, "direct_launches", failing_test)
    with pytest.warns(RuntimeWarning, match=r"the fast way did not pass the self-test on cpu \(RuntimeError: wrong"):
        launch({"q_ptr": torch.ones(1)})
    with warnings.catch_warnings(action="error"):  # one warning only
        launch({"q_ptr": torch.ones(1)})
        launch({"q_ptr": torch.ones(1)})
    assert kernel.num_launches == 3
    assert kernel.compiled.launches == []


def test_self_test_runs_once_and_uses_the_fast_way_itself() -> None:
    runs: list[bool] = []

    def test(device: torch.device) -> None:
        runs.append(tested.works(device))

    tested = _compat.SelfTested("a", "b", test)
    assert tested.works(CPU)
    assert tested.works(CPU)
    assert runs == [True]


def test_a_self_test_has_passed_after_its_end() -> None:
    during: list[tuple[bool, bool]] = []
    tested = _compat.SelfTested(
        "a", "b", lambda device: during.append((tested.works(device), tested.has_passed(device)))
    )
    assert not tested.has_passed(CPU)
    assert tested.works(CPU)
    assert tested.has_passed(CPU)
    assert during == [(True, False)]


def test_environment_variable_selects_the_public_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_compat.SWITCH, "0")
    with warnings.catch_warnings(action="error"):
        assert not _compat.SelfTested("a", "b", lambda device: None).works(CPU)


def test_no_self_test_runs_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    device, capturing = torch.device("cuda", 0), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    tested = _compat.SelfTested("a", "b", lambda device: None)
    assert not tested.works(device)
    capturing[0] = False
    assert tested.works(device)


@pytest.fixture
def interpreter() -> Iterator[None]:
    pytest.importorskip("triton")
    plan.clear_plans()
    yield
    plan.clear_plans()


DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
CHECKS = [self_test.check_direct_launches, self_test.check_reserved_shared_memory]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("check", CHECKS)
def test_self_tests_pass_and_leave_the_random_state(check: Any) -> None:
    state = torch.get_rng_state()
    check(DEVICE)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("check", CHECKS)
def test_self_tests_find_wrong_results_and_forget_their_launches(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, backend: Any, **options: Any) -> Tensor:
        output: Tensor = hw.attend(*args, backend=backend, **options)
        return output if backend == "reference" else output.roll(1, 2)

    monkeypatch.setattr(self_test, "attend", wrong)
    with pytest.raises(RuntimeError, match="the relative error of a tiny problem is"):
        check(DEVICE)
    assert not plan._plan_cache


def test_transformer_xl_uses_the_kernels_without_reserved_memory_if_the_test_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_self_test(monkeypatch, "reserved_shared_memory", failing_test)
    monkeypatch.setattr(torch.version, "hip", None)
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with_table, without_table = plan.Plan.__new__(plan.Plan), plan.Plan.__new__(plan.Plan)
    with_table.device = without_table.device = cuda
    with_table.dense_table, without_table.dense_table = torch.ones(1), None
    with pytest.warns(RuntimeWarning, match="the public way is used"):
        assert not with_table.is_fast
    assert without_table.is_fast
    assert not without_table.can_reserve_smem


def test_missing_private_functions_are_replaced_with_one_warning() -> None:
    module = SimpleNamespace(_inner=SimpleNamespace(_there=1))
    assert _compat.find_private(module, "_inner._there", 2, "") == 1
    with pytest.warns(RuntimeWarning, match=r"has no _inner\._gone: it is slower"):
        assert _compat.find_private(module, "_inner._gone", 2, "it is slower") == 2
    with warnings.catch_warnings(action="error"):
        assert _compat.find_private(module, "_inner._gone", 2, "it is slower") == 2


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_results_are_the_same_without_knowledge_of_the_dispatcher(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, q = hw.DistanceAware(heads=2), torch.randn(1, 2, 12, 8)

    def gradients() -> list[Tensor]:
        leaf = q.clone().requires_grad_()
        output = hw.attend(leaf, q, q, scheme=scheme, key_padding=torch.tensor([9]), backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), [leaf, *scheme.parameters()])]

    expected = gradients()
    monkeypatch.setattr(_compat, "functorch_is_active", lambda: True)
    monkeypatch.setattr(_compat, "num_dispatch_modes", lambda: 1)
    monkeypatch.setattr(_compat, "is_functorch_tensor", lambda _: True)
    torch.testing.assert_close(gradients(), expected)


def test_public_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=40 + device))
    assert _compat._public_stream(2) == 42


def test_implementation_of_one_configuration_is_set() -> None:
    class Config:
        """Another version of transformers, which stores the implementation under another name."""

        _attn_implementation = "sdpa"

    config = Config()
    with pytest.warns(RuntimeWarning, match="in a form that headwise does not support"):
        _compat.set_attn_implementation(config, "headwise")
    assert _compat.get_attn_implementation(config) == "headwise"
    config._attn_implementation = "eager"
    assert _compat.get_attn_implementation(config) == "eager"


def test_attention_runs_without_the_collector_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.integrations import hf_attention  # before the module is replaced, which transformers imports too

    assert _compat.find_active_collector() is not None
    monkeypatch.setitem(sys.modules, "transformers.utils.output_capturing", SimpleNamespace())
    with pytest.warns(RuntimeWarning, match="does not state which outputs it collects"):
        collector = _compat.find_active_collector()
    assert collector is None
    monkeypatch.setattr(hf_attention, "ACTIVE_COLLECTOR", collector)
    assert not hf_attention.are_weights_collected()


def test_outputs_are_collected_after_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled part of the model has started to collect; a layer after a graph break runs in eager mode."""
    from headwise.integrations import hf_attention

    assert not hf_attention.are_weights_collected()
    if not hasattr(hf_attention.ACTIVE_COLLECTOR, "compiling"):
        pytest.skip("this version of transformers has another way to collect in compiled code")
    for name, value in (("compiling", True), ("global_var", {"attentions": []})):
        monkeypatch.setattr(hf_attention.ACTIVE_COLLECTOR, name, value)
    assert hf_attention.are_weights_collected()
    assert hf_attention.are_weights_collected(is_compiling=False)


def test_guided_trainer_guides_without_the_inner_training_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.guidance.test_trainer import build_trainer, loss_logs
    from tests.integrations.tiny_models import build_model

    def logs(name: str) -> list[dict[str, float]]:
        torch.manual_seed(0)
        trainer = build_trainer(build_model("bert"), tmp_path / name, [hw.guides.MapDiscrimination(0.5)])
        trainer.train()
        assert trainer.guided is None
        return [{key: log[key] for key in ("loss", "guide/MapDiscrimination")} for log in loss_logs(trainer)]

    expected = logs("usual")
    monkeypatch.setattr(_compat, "has_inner_training_loop", lambda trainer: False)
    monkeypatch.delattr(hw.GuidedTrainer, "_inner_training_loop")
    assert logs("public") == expected


def test_a_trainer_without_the_inner_loop_is_reported() -> None:
    with pytest.warns(RuntimeWarning, match="object has no _inner_training_loop"):
        assert not _compat.has_inner_training_loop(object)
