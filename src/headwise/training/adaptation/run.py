"""Continued pre-training of an encoder: masked language modelling on unlabelled texts.

The output directory is an ordinary model directory, which `headwise train --model` and transformers load. It also
contains the configuration, `metrics.json` with the loss on dev before and after, and checkpoints.
"""

import logging
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, set_seed
from transformers.trainer_callback import ProgressCallback

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.models import initialize_by_name
from headwise.training.adaptation.blocks import MaskedBlocks, read_texts, split_texts, write_tokens
from headwise.training.adaptation.config import AdaptConfig
from headwise.training.adaptation.output_dir import begin, check_out_dir, render_card
from headwise.training.adaptation.trainer import AdaptTrainer
from headwise.training.core import run_dir
from headwise.training.core.arguments import build_arguments, checkpointing_arguments
from headwise.training.core.attention_notes import describe_scheme, describe_window
from headwise.training.core.batches import identity_collate
from headwise.training.core.callbacks import ProgressBar, TrainingTimer, quiet_libraries
from headwise.training.core.checkpointing import fit, gather_weights
from headwise.training.core.distributed import main_process_first, main_process_only, state
from headwise.training.core.environment import (
    describe_device,
    deterministic_algorithms,
    float32_products,
    get_peak_memory,
    get_versions,
    reset_peak_memory,
)
from headwise.training.core.extension import check_length, extend_model
from headwise.training.core.metrics import count_parameters, get_history
from headwise.training.core.pretrained import (
    check_gradient_checkpointing,
    is_available,
    load_pretrained,
    load_weights,
    remote_code,
    unavailable_error,
)
from headwise.training.core.run_dir import RunResult

logger = logging.getLogger(__name__)

#: Tokens of a block, if the model reads as many.
DEFAULT_LENGTH = 512
#: Blocks of dev whose loss is computed at most.
MAX_DEV_BLOCKS = 256


def adapt(
    config: AdaptConfig, out: Path, *, force: bool = False, resume: bool = False, trust_remote_code: bool = False
) -> RunResult:
    """Continue the pre-training of an encoder on unlabelled texts and save it as an ordinary model.

    Args:
        config: the configuration, which determines the result.
        out: the model directory.
        force: replace an existing result.
        resume: continue from the last checkpoint.
        trust_remote_code: run the Python code of the model's directory, if it has some.

    Raises:
        UserError: the configuration, the data or the directory is invalid, or another process uses the directory.
    """
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        stack.enter_context(deterministic_algorithms(config.deterministic))
        stack.enter_context(float32_products(config))
        stack.enter_context(remote_code(trust_remote_code))
        main_process_only(lambda: check_out_dir(out, force=force, resume=resume))
        main_process_only(lambda: stack.enter_context(lock_output(out, is_directory=True)))
        main_process_only(lambda: check_out_dir(out, force=force, resume=resume))  # now under the lock
        return run(config.resolve_paths(), out, resume=resume)


def run(config: AdaptConfig, out: Path, *, resume: bool) -> RunResult:
    """Run all steps. All processes of a distributed run call this function."""
    is_main_process = state().is_main_process
    with (
        run_dir.report_full_disk(out),
        run_dir.scratch_dir(out, is_main_process=is_main_process) as scratch_dir,
    ):
        set_seed(config.seed)
        model, tokenizer, pooler, max_length, notes = main_process_first(lambda: load_model(config))
        main_process_only(lambda: write_splits(config, tokenizer, scratch_dir))
        train_blocks, dev_blocks = open_blocks(config, tokenizer, max_length, scratch_dir)
        main_process_only(lambda: begin(out, config, resume=resume))
        notes.append(
            f"{train_blocks.num_tokens:,} tokens in {len(train_blocks):,} blocks of up to {max_length}; dev: "
            f"{len(dev_blocks):,} of {dev_blocks.num_blocks:,} blocks"
        )
        logger.info("%s, %s parameters, on %s", config.model, f"{count_parameters(model):,}", describe_device())
        for note in notes:
            logger.info("  %s", note)
        trainer = build_trainer(config, model, train_blocks, dev_blocks, out)
        if resume:
            main_process_only(lambda: run_dir.remove_broken_checkpoints(out))
        # Not before training: the Trainer would then train a copy in each process, without DDP. A resumed run has the
        # loss in its checkpoint.
        trainer.args.eval_on_start = not resume or run_dir.last_checkpoint(out) is None
        timer = TrainingTimer()
        trainer.add_callback(timer)
        reset_peak_memory()
        output = fit(trainer, out, resume=resume)
        metrics = {
            "task": "masked language modelling",
            "model": config.model,
            "metrics": {"before": to_metrics(trainer.initial_loss()), "after": to_metrics(trainer.dev_loss())},
            "tokens": train_blocks.num_tokens,
            "blocks": len(train_blocks),
            "max_length": max_length,
            "notes": notes,
            "parameters": count_parameters(model),
            "steps": output.global_step,
            "epochs": output.metrics.get("epoch"),
            "train_seconds": round(timer.seconds, 2),
            "peak_memory": get_peak_memory(),
            "device": describe_device(),
            "versions": get_versions(),
            "history": get_history(trainer),
        }
        weights = gather_weights(trainer) or model.state_dict()
        if is_main_process:
            with run_dir.staging_dir(out) as stage:
                model.save_pretrained(stage, state_dict=weights | pooler)
                tokenizer.save_pretrained(stage)
                (stage / run_dir.CARD).write_text(render_card(config, metrics, out), encoding="utf-8")
                (stage / run_dir.METRICS).write_text(run_dir.to_json(metrics), encoding="utf-8")
        state().wait_for_everyone()
        return RunResult(out, metrics)


def load_model(config: AdaptConfig) -> tuple[Any, Any, dict[str, Any], int, list[str]]:
    """Load the model with its head for masked language modelling, extended if asked for.

    Returns:
        The model, the tokenizer, the weights of the pooler, which the model does not have and its classifiers use, the
        number of tokens of a block, and notes.

    Raises:
        UserError: the model cannot be loaded, has no mask token or accepts fewer tokens.
    """
    available = is_available(config.model)
    options = {} if available else {"local_files_only": True}
    try:
        tokenizer = load_pretrained(AutoTokenizer, config.model, **options)
        dtype = {"dtype": torch.float32}  # half-precision weights would lose updates of 1e-5
        model, info = load_weights(AutoModelForMaskedLM, config.model, **dtype, **options)
        pooler = {}
        if any("pooler." in name for name in info["unexpected_keys"]):
            base, _ = load_weights(AutoModel, config.model, **dtype, **options)
            pooler = {
                f"{model.base_model_prefix}.{name}": weight
                for name, weight in base.state_dict().items()
                if name.startswith("pooler.")
            }
    except UserError:
        raise
    except Exception as error:  # libraries raise many types for damaged files
        error = unavailable_error(config.model, error, available=available)
        raise UserError(str(error).removeprefix("--model ")) from None
    for name in ("mask_token", "pad_token"):
        if getattr(tokenizer, name) is None:
            raise UserError(f"{config.model}: the tokenizer has no {name}, which masked language modelling needs")
    if config.gradient_checkpointing:
        check_gradient_checkpointing(model)
    num_tokens = 1 + max(len(tokenizer) - 1, *tokenizer.get_vocab().values())  # masking also inserts random tokens
    num_embeddings = model.get_input_embeddings().weight.shape[0]
    if num_tokens > num_embeddings:
        raise UserError(
            f"{config.model}: the tokenizer has {num_tokens} tokens and the model {num_embeddings} embeddings; they do "
            "not belong together"
        )
    new = set(info["missing_keys"]) & dict(model.named_parameters()).keys()
    initialize_by_name(model, config.seed, new)
    notes = [f"new language-model head: {len(new)} parameter tensors, {', '.join(sorted(new))}"] if new else []
    notes += [*describe_scheme(model), *describe_window(model)]
    option = "--extend-positions"
    if config.extend_positions is not None:
        assert config.max_length is not None
        notes.append(extend_model(model, tokenizer, config.max_length, config.extend_positions, option=option))
    limit = check_length(config.max_length, model, tokenizer, option=option + " {positions}")
    return model, tokenizer, pooler, config.max_length or min(DEFAULT_LENGTH, limit), notes


def write_splits(config: AdaptConfig, tokenizer: Any, scratch_dir: Path) -> None:
    """Write the tokens of train and dev to files.

    Raises:
        UserError: a split has no text.
    """
    files = {"train": config.data, "dev": config.dev or config.data}
    for split, paths in files.items():
        texts = read_texts(paths, config.text)
        if not config.dev:
            texts = split_texts(texts, dev=split == "dev")
        count = write_tokens(texts, tokenizer, scratch_dir / f"{split}.tokens")
        if not count:
            needed = "texts" if config.dev or split == "dev" else "at least two texts, one of them for dev"
            raise UserError(f"{', '.join(paths)}: expected {needed}")
        logger.info("%s: %s texts", split, f"{count:,}")


def open_blocks(
    config: AdaptConfig, tokenizer: Any, max_length: int, scratch_dir: Path
) -> tuple[MaskedBlocks, MaskedBlocks]:
    """Return the blocks of train and dev, from the files of `write_splits`."""
    train_blocks, dev_blocks = (
        MaskedBlocks(
            scratch_dir / f"{split}.tokens",
            tokenizer,
            max_length=max_length,
            probability=config.mlm_probability,
            seed=config.seed,
            max_blocks=max_blocks,
        )
        for split, max_blocks in (("train", None), ("dev", MAX_DEV_BLOCKS))
    )
    return train_blocks, dev_blocks


def build_trainer(
    config: AdaptConfig, model: Any, train_blocks: MaskedBlocks, dev_blocks: MaskedBlocks, out: Path
) -> AdaptTrainer:
    """Build the Trainer."""
    assert config.batch_size is not None
    batch_size = min(config.batch_size, len(train_blocks))
    per_process = -(-batch_size // state().num_processes)
    arguments = build_arguments(
        config,
        out,
        max_steps=config.steps,
        per_device_train_batch_size=per_process,
        per_device_eval_batch_size=per_process,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        **checkpointing_arguments(config.gradient_checkpointing),
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        eval_strategy="steps",
        eval_steps=config.checkpoint_steps,
        save_strategy="steps",
        save_steps=config.checkpoint_steps,
        save_total_limit=1,
        prediction_loss_only=True,  # the logits of all tokens would not fit in memory
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = AdaptTrainer(
        model=model,
        args=arguments,
        train_dataset=train_blocks,
        eval_dataset=dev_blocks,
        data_collator=identity_collate,
        batch_size=batch_size,
    )
    trainer.pop_callback(ProgressCallback)
    trainer.add_callback(ProgressBar)  # it shows no bar for the evaluation before training
    return trainer


def to_metrics(loss: float) -> dict[str, float]:
    """Return the loss and the perplexity of masked tokens."""
    return {"loss": loss, "perplexity": math.exp(min(loss, 700))}
