"""Makes Triton's interpreter faster, which runs the kernels without a GPU."""

import dataclasses
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

#: What is replaced here.
PARTS = ("_LangPatchScope", "_get_np_dtype", "_patch_attr", "_patch_builtin", "_patch_lang", "interpreter_builder")


def speed_up_interpreter(*, check_overflow: bool) -> None:
    """Let Triton's interpreter keep what it otherwise computes at each operation: builtins, types and shapes.

    Args:
        check_overflow: compute all sums and products of integers twice, to find overflows.
    """
    if find_spec("triton") is None:
        return
    from triton import language
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, part) for part in PARTS):
        return
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=check_overflow)
    interpreter._get_np_dtype = remember_dtypes(interpreter._get_np_dtype)
    language.core.block_type.__init__ = remember_block_types(language.core.block_type.__init__)
    language.core.tensor.__init__ = remember_tensor_types(language.core.tensor.__init__)
    remember_builtins(interpreter, language)


def remember_builtins(interpreter: Any, language: Any) -> None:
    """Look for the builtins of a module or class once, and replace them once per kernel, not at each function call."""
    is_builtin, patch_lang = language.core.is_builtin, interpreter._patch_lang
    names_by_owner: dict[Any, list[str]] = {}
    modules_by_globals: dict[int, list[Any]] = {}

    def is_patched(owner: Any) -> bool:
        names = names_by_owner.get(owner)
        return names is not None and not (names and is_builtin(getattr(owner, names[0])))

    def patch_builtin(owner: Any, *args: Any) -> None:
        if owner not in names_by_owner:
            names_by_owner[owner] = [name for name, member in inspect.getmembers(owner) if is_builtin(member)]
        if not is_patched(owner):
            for name in names_by_owner[owner]:
                interpreter._patch_attr(owner, name, getattr(owner, name), *args)

    def patch_once(function: Any) -> Any:
        variables = function.__globals__
        if id(variables) not in modules_by_globals:
            modules = [value for value in variables.values() if inspect.ismodule(value)]
            modules_by_globals[id(variables)] = [x for x in modules if x in (language, language.core)]
        if all(map(is_patched, modules_by_globals[id(variables)])):
            return interpreter._LangPatchScope()  # a kernel runs, and this function is a part of it
        return patch_lang(function)

    interpreter._patch_builtin = patch_builtin
    interpreter._patch_lang = patch_once


def remember_dtypes(get_np_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Look for NumPy's dtype once for each type."""
    dtypes: dict[str, Any] = {}

    def get_once(type: Any) -> Any:
        if type.name not in dtypes:
            dtypes[type.name] = get_np_dtype(type)
        return dtypes[type.name]

    return get_once


def remember_block_types(init: Callable[..., None]) -> Callable[..., None]:
    """Compute the attributes of a block type once for each type of its elements and shape."""
    attributes: dict[Any, dict[str, Any]] = {}

    def init_once(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *[getattr(size, "value", size) for size in shape])
        if key not in attributes:
            init(self, element_ty, shape)
            attributes[key] = vars(self).copy()
        vars(self).update(attributes[key])

    return init_once


def remember_tensor_types(init: Callable[..., None]) -> Callable[..., None]:
    """Compute the attributes of a tensor that depend on its type once for each type."""
    attributes: dict[str, dict[str, Any]] = {}

    def init_once(self: Any, handle: Any, type: Any) -> None:
        if type.name not in attributes:
            init(self, handle, type)
            attributes[type.name] = vars(self).copy()
        vars(self).update(attributes[type.name])
        self.handle = handle

    return init_once
