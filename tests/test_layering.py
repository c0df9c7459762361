"""Dependencies between packages point down only: cli → studies → training → tasks, models, guidance → attention."""

import ast
from pathlib import Path

import headwise

ROOT = Path(headwise.__file__).parent

#: The packages that each package may import, besides itself.
DEPENDENCIES = {
    "attention": set(),
    "integrations": {"attention"},
    "guides": {"attention", "integrations"},
    "guidance": {"attention", "integrations", "guides"},
    "models": {"attention"},
    "inspection": {"attention", "integrations", "models"},
    "tasks": set(),
    "simulation": {"tasks"},
    "training": {"attention", "integrations", "guides", "guidance", "models", "tasks", "inspection"},
    "studies": {"attention", "integrations", "guides", "guidance", "models", "tasks", "training", "inspection"},
    "bench": {"attention", "integrations", "guides", "guidance", "models", "inspection"},
    "cli": {
        "attention",
        "integrations",
        "guides",
        "guidance",
        "models",
        "tasks",
        "training",
        "studies",
        "bench",
        "inspection",
        "simulation",
    },
}


def imported_packages(source: str) -> set[str]:
    """Return the packages of headwise that a module imports."""
    packages = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        packages |= {name.split(".")[1] for name in names if name.startswith("headwise.")}
    return packages


def test_dependencies_point_down_only() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == DEPENDENCIES.keys()
    for path in ROOT.glob("*/**/*.py"):
        package = path.relative_to(ROOT).parts[0]
        imported = (imported_packages(path.read_text(encoding="utf-8")) & packages) - {package}
        assert imported <= DEPENDENCIES[package], f"{path}: {package} may not import {imported - DEPENDENCIES[package]}"


def test_backends_do_not_import_each_other() -> None:
    attention = ROOT / "attention"
    backends = {"reference", "blockwise", "sdpa", "triton_backend"}
    for backend in backends:
        files = [path for path in (attention / f"{backend}.py", *(attention / backend).glob("*.py")) if path.exists()]
        assert files, f"no files of the backend {backend}"
        for path in files:
            for other in backends - {backend}:
                assert f"headwise.attention.{other}" not in path.read_text(encoding="utf-8"), f"{path} imports {other}"


#: The parts of `training` that each part may import, besides itself.
TRAINING = {
    "core": set(),
    "jobs": {"core"},
    "text": {"core", "jobs"},
    "translation": {"core", "jobs"},
    "recommendation": {"core", "jobs"},
    "adaptation": {"core"},
    "registry": {"core", "text", "translation", "recommendation"},
    "run": {"core", "jobs", "registry"},
    "ray_train": {"core", "run"},
    "text_rows": {"text"},
    "inspect": {"core", "jobs", "registry", "text_rows"},
    "__init__": {"adaptation", "core", "text", "run"},
}


def test_imports_inside_training_go_down_only() -> None:
    training = ROOT / "training"
    for path in training.rglob("*.py"):
        part = path.relative_to(training).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        used = {module.split(".")[2] for module in modules if module.startswith("headwise.training.")}
        assert used <= TRAINING[part] | {part}, f"{path}: {part} may not import {used - TRAINING[part] - {part}}"
