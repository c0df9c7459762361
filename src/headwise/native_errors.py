"""Errors of compiled libraries: Rust panics, which are no `Exception`s, and exhausted memory."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from headwise.errors import UserError


@contextmanager
def native_errors(subject: Path | str, action: str) -> Iterator[None]:
    """Turn a panic or exhausted memory into a UserError.

    Args:
        subject: The file or object, for the message.
        action: What cannot be done with it, such as "the model cannot be loaded".

    Raises:
        UserError: A library panicked, or the memory is exhausted.
    """
    try:
        yield
    except BaseException as error:
        if is_out_of_memory(error):
            raise UserError(f"{subject}: {action}: out of memory{describe(error)}") from None
        if is_panic(error):
            raise UserError(f"{subject}: {action}{describe(error)}") from None
        raise


@contextmanager
def tokenizer_errors(tokenizer: Any) -> Iterator[None]:
    """Turn a panic or an exception of a tokenizer, or exhausted memory, into a UserError.

    A regular expression of a tokenizer.json panics after ten million steps. Rust prints a stack trace first, so
    standard error is held back if a tokenizer has regular expressions.
    """
    name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
    held = buffer_stderr() if has_patterns(tokenizer) else nullcontext()
    with native_errors(name, "a text cannot be tokenized"), held:
        try:
            yield
        except Exception as error:  # the files of a tokenizer from elsewhere can contain anything
            if is_panic(error) or is_out_of_memory(error):
                raise
            raise UserError(f"{name}: a text cannot be tokenized ({type(error).__name__}: {error})") from None


def has_patterns(tokenizer: Any) -> bool:
    """Return whether a tokenizer has regular expressions of its own."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "Regex" in repr((getattr(backend, "normalizer", None), getattr(backend, "pre_tokenizer", None)))


@contextmanager
def buffer_stderr() -> Iterator[None]:
    """Hold back what is written to standard error, and drop it if a library panics."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        panicked = False
        try:
            yield
        except BaseException as error:
            panicked = is_panic(error)
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if not panicked:
                file.seek(0)
                os.write(2, file.read())


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory is exhausted."""
    messages = ("DefaultCPUAllocator", "not enough memory", "out of memory", "std::bad_alloc", "Cannot allocate memory")
    is_runtime_error = isinstance(error, RuntimeError | OSError)
    return isinstance(error, MemoryError) or (is_runtime_error and any(text in str(error) for text in messages))


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a Rust library. PyO3's class cannot be imported."""
    return type(error).__name__ == "PanicException"


def describe(error: BaseException) -> str:
    """Return the first line of an error's message in parentheses, or nothing."""
    lines = str(error).strip().splitlines()
    return f" ({lines[0]:.200})" if lines else ""
