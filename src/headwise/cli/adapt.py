"""Continue the pre-training of a Hugging Face encoder on your own texts, without labels (masked language modelling).
The result is an ordinary model directory for headwise train --model.

examples:
  headwise adapt bert-base-uncased --data texts.txt --out models/adapted
  headwise adapt bert-base-uncased --data reviews.csv --text body --steps 3000 --out models/reviews
  headwise adapt bert-base-uncased --data papers.jsonl --max-length 4096 --extend-positions tile --out models/long
  headwise adapt --resume --out models/adapted
"""

import logging
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from shlex import quote

from headwise.cli.arguments import Parser, add_options, add_trust_option, parse_options
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.train import check_unchanged
from headwise.errors import UserError
from headwise.training.adaptation.config import CONFIG, UNUSED, AdaptConfig

logger = logging.getLogger(__name__)

METAVARS = {"data": "FILE", "dev": "FILE"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="directory or name of a Hugging Face encoder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the adapted model (required)")
    parser.add_argument("--force", action="store_true", help="replace an existing result in the directory")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in the directory")
    add_trust_option(parser)
    add_options(parser, AdaptConfig, exclude={"model", *UNUSED}, metavars=METAVARS)


def run(arguments: Namespace) -> int:
    config = build_config(arguments)
    out = arguments.out
    try:
        with raise_caught_interrupts():
            from headwise.training.adaptation.run import adapt  # takes seconds

        result = adapt(config, out, force=arguments.force, resume=arguments.resume)
    except KeyboardInterrupt:
        is_resumable = (out / CONFIG).is_file()
        hint = f"; --resume continues: headwise adapt --resume --out {quote(str(out))}" if is_resumable else ""
        logger.warning("\nstopped%s", hint)
        raise
    if os.environ.get("RANK", "0") == "0":
        before, after = (result.metrics["metrics"][name] for name in ("before", "after"))
        print(
            f"dev: loss {before['loss']:.4f} -> {after['loss']:.4f}, perplexity {before['perplexity']:.2f} -> "
            f"{after['perplexity']:.2f}"
        )
        options = f"--model {quote(str(out))} --max-length {result.metrics['max_length']} --data FILE --out RUN"
        print(f"The model is in {out}\nTo fine-tune it: headwise train {options}")
    return 0


def build_config(arguments: Namespace) -> AdaptConfig:
    """Return the configuration: the options, or with --resume the saved ones.

    Raises:
        UserError: an option is missing or invalid, or contradicts the run that is to be resumed.
    """
    if arguments.out is None:
        raise UserError("--out is required: the directory for the model")
    names = AdaptConfig.__dataclass_fields__.keys() - UNUSED
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    values = parse_options(AdaptConfig, given)
    if not arguments.resume:
        return AdaptConfig(**values)
    saved_path = arguments.out / CONFIG
    if not saved_path.is_file():
        raise UserError(f"--resume: {arguments.out} contains nothing to resume ({saved_path.name} is missing)")
    saved = AdaptConfig.load(saved_path)
    config = replace(saved, **values)
    check_unchanged(config.resolve_paths(), saved)
    return config
