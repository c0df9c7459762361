"""The output directory of continued pre-training: checks, preparation and the model card."""

import shutil
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.locks import LOCK_FILE
from headwise.training.adaptation.config import CONFIG, AdaptConfig
from headwise.training.core import run_dir


def check_out_dir(out: Path, *, force: bool, resume: bool) -> None:
    """Check that a model can be written to a directory. Nothing is changed.

    Raises:
        UserError: the directory contains other files, or nothing to resume.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: a file of that name exists")
    has_config, is_finished = (out / CONFIG).is_file(), (out / run_dir.METRICS).exists()
    if resume:
        if not has_config or is_finished:
            reason = f"contains nothing to resume ({CONFIG} is missing)" if not has_config else "is already finished"
            raise UserError(f"--resume: {out} {reason}")
        return
    ignored = (LOCK_FILE, run_dir.partial_path(out / CONFIG).name)
    if out.is_dir() and any(path.name not in ignored for path in out.iterdir()):
        if not has_config:
            raise UserError(f"--out {out}: contains files of something else; choose another directory")
        if not force:
            what = "an adapted model" if is_finished else "an unfinished run (--resume continues it)"
            raise UserError(f"--out {out}: contains {what}; --force replaces it")


def begin(out: Path, config: AdaptConfig, *, resume: bool) -> None:
    """Prepare the directory and write the configuration. An old result is deleted unless it is resumed."""
    if resume:
        return
    (out / run_dir.METRICS).unlink(missing_ok=True)  # first: without it, the directory is unfinished
    for path in out.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (CONFIG, LOCK_FILE):
            path.unlink()
    run_dir.atomic_write(out / CONFIG, config.to_yaml())


def render_card(config: AdaptConfig, metrics: dict[str, Any], out: Path) -> str:
    """Return the model card."""
    before, after = (metrics["metrics"][name] for name in ("before", "after"))
    base = config.model if not Path(config.model).exists() else Path(config.model).name
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags: [headwise]
---

# {out.name}

{base}, pre-trained further by masked language modelling on {metrics["tokens"]:,} tokens of unlabelled text with
`headwise adapt`: {metrics["steps"]:,} steps, blocks of {metrics["max_length"]:,} tokens.

| | loss on dev | perplexity |
|---|---|---|
| before | {before["loss"]:.4f} | {before["perplexity"]:.2f} |
| after | {after["loss"]:.4f} | {after["perplexity"]:.2f} |

Fine-tune it: `headwise train --model DIRECTORY --data FILE --out RUN`.
"""
