import atexit
import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.gpu_files import uses_gpu
from tests.short_form import choose_size, select_short_form, set_form
from tests.triton_interpreter import speed_up_interpreter

gc.disable()  # until all tests are imported, see pytest_collection_finish
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton's interpreter runs kernels on the CPU


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def cheap_cleanup() -> Iterator[None]:
    """Leave garbage to Python: accelerate collects it before each training. The short form does not wait for disks."""
    with pytest.MonkeyPatch.context() as patch:
        if "accelerate.utils.memory" in sys.modules:
            patch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=lambda: 0))
        patch.setattr(os, "fsync", choose_size(short=lambda descriptor: None, long=os.fsync))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long form of the suite: all cases, more random examples")
    parser.addoption("--slow", action="store_true", help="also run what takes minutes or much memory")
    parser.addoption("--gpu", action="store_true", help="only the files that use a GPU if there is one")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import other files with --gpu: they need packages that a machine with a GPU may not have."""
    if not config.getoption("--gpu"):
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any(path.suffix == ".py" and uses_gpu(path) for path in files) else True


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("hypothesis") is not None:
        load_hypothesis_profile("long" if config.getoption("--long") else "short")
    set_form(is_short=not config.getoption("--long"))
    if "TRITON_INTERPRET" in os.environ:
        speed_up_interpreter(check_overflow=config.getoption("--long"))


def load_hypothesis_profile(name: str) -> None:
    from hypothesis import HealthCheck, settings

    no_clock = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("short", no_clock, max_examples=12, derandomize=True)
    settings.register_profile("long", no_clock, max_examples=100)
    settings.load_profile(name)


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
    if not config.getoption("--long"):
        selected = select_short_form(items)
        config.hook.pytest_deselected(items=sorted(set(items) - set(selected), key=items.index))
        items[:] = selected


def pytest_collection_finish() -> None:
    """Exclude all that was imported from garbage collection, which takes half of the time of short runs otherwise.

    Garbage is collected less often than by default: models of tests are small.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 50, 50)


def pytest_unconfigure() -> None:
    atexit.register(gc.unfreeze)  # after pytest's own collections; Triton's bindings report frozen objects as leaks
