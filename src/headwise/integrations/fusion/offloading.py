"""Weights that accelerate has offloaded to the CPU or to disk, in modules whose code is not called.

accelerate's hooks load the weights of a module before its `forward` and release them after it. Some models read
`module.weight` of a submodule that they do not call, which is then an empty tensor of the device `meta`.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn


@contextmanager
def load_offloaded(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Load the weights of modules with hooks of accelerate, and release them on exit."""
    with ExitStack() as stack:
        for module in modules:
            hook = getattr(module, "_hf_hook", None)
            if hook is not None:
                hook.pre_forward(module)
                stack.callback(hook.post_forward, module, None)
        yield


def modules_with_name(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    """Return the submodules with one of these names, at any depth."""
    return [module for path, module in model.named_modules() if path.rpartition(".")[2] in names]
