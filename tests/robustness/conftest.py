from collections.abc import Iterator

import pytest

from tests.robustness.launcher import Launcher
from tests.training.conftest import bert, cheap_baselines, cheap_figures, headwise, own_cache, reviews
from tests.training.recommendation.conftest import log

__all__ = ["bert", "cheap_baselines", "cheap_figures", "headwise", "log", "own_cache", "reviews"]


@pytest.fixture(scope="session")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def launcher(shared_launcher: Launcher) -> Launcher:
    return shared_launcher
