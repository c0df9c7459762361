"""`pytest --gpu` collects the files that use a GPU, and no others."""

from pathlib import Path

import pytest

from tests.gpu_files import ROOT, uses_gpu

pytest_plugins = ["pytester"]

ASK = "import torch\nGPU = torch.cuda.is_" + "available()\n"


def test_files_that_ask_for_a_gpu_are_found(tmp_path: Path) -> None:
    files = {
        "cases.py": ASK,
        "more_cases.py": "from tests.cases import GPU",
        "test_direct.py": ASK,
        "test_imports.py": "import pytest\nfrom tests.cases import GPU",
        "test_imports_module.py": "from tests import more_cases",
        "test_without.py": "import tests.other_cases, torch.cuda",
        "other_cases.py": "from tests import test_without",
    }
    for name, source in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    found = {name for name in files if uses_gpu(tmp_path / "tests" / name, tmp_path)}
    assert found == set(files) - {"test_without.py", "other_cases.py"}


@pytest.mark.parametrize("name", ["attention/test_triton.py", "attention/test_decoding.py", "test_compat.py"])
def test_kernel_tests_use_a_gpu(name: str) -> None:
    assert uses_gpu(ROOT / "tests" / name)


def test_other_files_are_not_imported(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_ignore_collect")
    pytester.makepyfile(test_kernels=ASK + "def test_kernels(): pass", test_other="import missing_package")
    result = pytester.runpytest("--gpu", "--doctest-modules", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
