"""Plans of reproductions: which runs a table or figure needs, with the paper's settings and those of the user."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headwise import tasks
from headwise.errors import UserError
from headwise.small_files import read_json
from headwise.studies.methods import Method, model_label, unused_name
from headwise.studies.plan import Run, build_config, plan_runs
from headwise.studies.reproduction import Overrides, StudySpec
from headwise.studies.search_space import GUIDE_WEIGHTS, Dimension, parse_values
from headwise.studies.trial_design import NUM_FIRST_TRIALS, SECOND_FACTOR, SECOND_FACTOR_WITH_WEIGHTS, build_trials
from headwise.studies.tuning import TunedMethod, plan_trials
from headwise.tasks.mind import MIND
from headwise.training.core.config import EncoderConfig, RunConfig, option_name
from headwise.training.core.defaults import DEFAULT_TRIALS, MIN_PATIENCE, Settings, fill_unset
from headwise.training.core.pretrained import is_scheme
from headwise.training.registry import get_task_type
from headwise.training.text.config import GUIDE_OPTIONS

logger = logging.getLogger(__name__)

#: Adam with a constant learning rate, as the papers on distance-aware attention and guiding state it. Translation has
#: the schedule of Vaswani et al. (2017).
PLAIN_ADAM: Overrides = {
    "warmup_steps": 0.0,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,  # no clipping
}


#: An option that some methods set, because the paper's model needs it. The user's value replaces it.
BATCH_SIZE = "batch_size"

#: The default number of trials after the first ones is at most that of the guiding paper's grid of two weights.
MAX_SECOND_TRIALS = len(GUIDE_WEIGHTS) ** 2


@dataclass(frozen=True)
class ReproduceOptions:
    """Deviations from the paper that the user asks for.

    Args:
        data_by_task: tasks with the paths of their data, or None for data from the hub; empty for the study's tasks.
        methods: a selection of the study's methods; empty for all.
        overrides: training options.
        models: models, instead of those of the paper.
        baseline: the method that all others are compared with; by default the study's baseline and controls.
        over: options that are tuned on dev for every method, each with its values.
        trials: the number of dev trials of each method; by default see `count_trials`.
    """

    data_by_task: Mapping[str, str | None]
    methods: Sequence[str]
    overrides: Overrides
    models: Sequence[str] = ()
    baseline: str | None = None
    over: Sequence[Sequence[str]] = ()
    trials: int | None = None


@dataclass(frozen=True)
class ReproductionPlan:
    """The runs of a reproduction.

    Args:
        runs: the runs that do not depend on others: first trials of tuned methods, or all runs if nothing is tuned.
        tuned: the methods whose settings are chosen on dev.
        spec: the study, with the user's models and weights of guides.
        baseline: the method that others are compared with.
        controls: the methods that are compared with another method than the baseline.
        seeds: the number of seeds.
    """

    runs: list[Run]
    tuned: list[TunedMethod]
    spec: StudySpec
    baseline: str
    controls: Mapping[str, str]
    seeds: int
    first_seed: int = field(default=0)

    @property
    def num_runs(self) -> int:
        """The number of runs, including those of tuned methods."""
        return len(self.runs) + sum(self.seeds + tuned.num_second for tuned in self.tuned)


def plan_reproduction(name: str, spec: StudySpec, options: ReproduceOptions, seeds: int) -> ReproductionPlan:
    """Return the runs of a study. Methods that cannot be run are skipped and logged.

    Raises:
        UserError: a task, model, guide or method is unknown, options are invalid, or no run is left.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    spec = apply_method_options(name, spec, options)
    spec = apply_guide_weights(name, apply_models(name, spec, options.models), options.overrides)
    methods = select_methods(name, spec, options)
    data_by_task = options.data_by_task or dict.fromkeys(spec.tasks)
    runs: list[Run] = []
    tuned: list[TunedMethod] = []
    baseline = options.baseline or spec.baseline
    first_seed = 0
    for task, data in data_by_task.items():
        base = build_base_config(spec, task, data, options.overrides)
        first_seed = base.seed
        task_methods = [method for method in methods if is_applicable(method, base)]
        if all(method.name == baseline for method in task_methods) and len(methods) > 1:
            continue
        grids = {method.name: build_grid(spec, method, base, options) for method in task_methods}
        num_trials = count_trials(list(grids.values()), options)
        has_weights = any(x.is_guide_weight for grid in grids.values() for x in grid)
        factor = SECOND_FACTOR_WITH_WEIGHTS if has_weights else SECOND_FACTOR  # the same for all methods
        for method in task_methods if num_trials else ():
            config = use_paper_settings(build_config(base, method, base.seed))
            trials = build_trials(
                config, method, num_trials, grids[method.name], grid_only=bool(options.over), second_factor=factor
            )
            tuned_method, trial_runs = plan_trials(base, method, trials, task, use_paper_settings)
            tuned.append(tuned_method)
            runs += trial_runs
        planned = plan_runs([base], () if num_trials else task_methods, range(base.seed, base.seed + seeds))
        runs += [replace(run, task=task) for run in planned]
    if not runs:
        raise UserError(f"{name}: no runs are left")
    runs = [replace(run, config=use_paper_settings(run.config)) for run in runs]
    names = [method.name for method in methods]
    controls = {} if options.baseline else {x: y for x, y in spec.controls.items() if x in names and y in names}
    if baseline not in names:
        baseline = next(iter(controls.values()))
    return ReproductionPlan(runs, tuned, spec, baseline, controls, seeds, first_seed)


def apply_models(name: str, spec: StudySpec, models: Sequence[str]) -> StudySpec:
    """Return a study with the user's models instead of the paper's.

    Raises:
        UserError: the study does not compare models and got several, or its methods are models.
    """
    if not models:
        return spec
    if spec.with_models is not None:
        labels: dict[str, Overrides] = {}
        for model in models:
            labels[unused_name(model_label(model), labels)] = {"model": model}
        return spec.with_models(labels)
    if any("model" in overrides for overrides in spec.methods.values()):
        raise UserError(f"--model {' '.join(models)}: the methods of {name} are models; select them with --methods")
    if len(models) > 1:
        raise UserError(f"--model {' '.join(models)}: {name} is about one model; expected one name or directory")
    return replace(spec, tasks={task: {**overrides, "model": models[0]} for task, overrides in spec.tasks.items()})


def apply_method_options(name: str, spec: StudySpec, options: ReproduceOptions) -> StudySpec:
    """Return a study whose methods have the user's batch size. Other options of methods are what the study compares.

    Raises:
        UserError: the user sets or tunes such an option, so that some methods would not be what their name says.
    """
    compared = {option for overrides in spec.methods.values() for option in overrides} - {"guides", "model", BATCH_SIZE}
    tuned = {normalize_option(option) for option, *_ in options.over}
    for option in sorted(compared):
        if option in tuned or option in options.overrides:
            raise UserError(f"{option_name(option)}: the methods of {name} set it; select methods with --methods")
    if BATCH_SIZE not in options.overrides:
        return spec
    methods = {
        method: {option: value for option, value in overrides.items() if option != BATCH_SIZE}
        for method, overrides in spec.methods.items()
    }
    return replace(spec, methods=methods)


def normalize_option(text: str) -> str:
    """Return the name of an option of `--over`.

    >>> normalize_option("--learning-rate"), normalize_option("learning_rate")
    ('learning_rate', 'learning_rate')
    """
    return text.removeprefix("--").replace("-", "_")


def apply_guide_weights(name: str, spec: StudySpec, user_overrides: Overrides) -> StudySpec:
    """Return a study whose guided methods have the weights that the user gave. Layers are those of the study.

    Raises:
        UserError: no method has a guide that the user names, a weight is missing, or layers are given.
    """
    guide_names = {guide_name(x) for overrides in spec.methods.values() for x in overrides.get("guides", ())}
    for option in GUIDE_OPTIONS:
        if option in user_overrides and not guide_names:
            raise UserError(f"{option_name(option)}: no method of {name} has guides")
    weights = {}
    for text in user_overrides.get("guides", ()):
        guide, _, weight = text.partition("=")
        if guide.partition("@")[0] not in guide_names:
            expected = f"its guides are {', '.join(sorted(guide_names))}" if guide_names else "it has no guides"
            raise UserError(f"--guides {text}: no method of {name} has this guide; {expected}")
        if "@" in guide or not weight:
            raise UserError(
                f"--guides {text}: expected a weight, as in {guide_name(guide)}=0.01; {name} sets the layers"
            )
        weights[guide] = weight
    methods = {}
    for method, overrides in spec.methods.items():
        guides = [
            f"{x.partition('=')[0]}={weights[guide_name(x)]}" if guide_name(x) in weights else x
            for x in overrides.get("guides", ())
        ]
        methods[method] = {**overrides, "guides": tuple(guides)} if guides else overrides
    return replace(spec, methods=methods)


def guide_name(text: str) -> str:
    """Return the name in a value of `--guides`.

    >>> guide_name("mdg@6=0.01")
    'mdg'
    """
    return text.partition("=")[0].partition("@")[0]


def select_methods(name: str, spec: StudySpec, options: ReproduceOptions) -> list[Method]:
    """Return the selected methods together with their controls and the baseline.

    Raises:
        UserError: a method is not in the study, or cannot be run.
    """
    named = {"--methods": options.methods, "--baseline": [options.baseline] if options.baseline else []}
    for option, method in ((option, method) for option, methods in named.items() for method in methods):
        if method not in spec.methods:
            raise UserError(f"{option} {method}: not in {name}; expected one of {', '.join(spec.methods)}")
    selected = set(options.methods or spec.methods)
    for method in list(selected):
        reason = why_unavailable(spec.methods[method].get("guides", ()))
        if reason and options.methods:
            raise UserError(f"--methods {method}: {reason}")
        if reason:
            logger.warning("skipped %s: %s", method, reason)
            selected.remove(method)
    if options.baseline:
        selected.add(options.baseline)
    else:
        selected |= {spec.controls[method] for method in selected if method in spec.controls}
        if selected - spec.controls.keys() - set(spec.controls.values()):
            selected.add(spec.baseline)
    return [Method(method, overrides) for method, overrides in spec.methods.items() if method in selected]


def why_unavailable(guides: Sequence[str]) -> str:
    """Return why guides cannot be used: a package or its data is missing; empty if they can."""
    from headwise.guides.dependency import load_parser
    from headwise.guides.word_similarity import load_wordnet

    loaders = {"dependency": load_parser, "word-similarity": load_wordnet}
    for name in (guide_name(guide) for guide in guides):
        try:
            if name in loaders:
                loaders[name]()
        except ImportError as error:
            return str(error)
    return ""


def count_trials(grids: Sequence[Sequence[Dimension]], options: ReproduceOptions) -> int:
    """Return the number of trials, which is the same for all methods of a task; 0 if the study tunes nothing.

    The default tries combinations of the largest grid after the first trials, at most `MAX_SECOND_TRIALS`, and is at
    least `DEFAULT_TRIALS`. If the user gives the values to try, it is the number of combinations.

    Raises:
        UserError: the number of the user is below 2.
    """
    if options.trials is not None:
        if options.trials < 2:
            raise UserError(f"--tune must be at least 2, got {options.trials}")
        return options.trials
    largest = max((math.prod(len(x.values) for x in grid) for grid in grids if grid), default=0)
    if options.over or not largest:
        return largest
    return max(min(largest, MAX_SECOND_TRIALS) + NUM_FIRST_TRIALS, DEFAULT_TRIALS)


def build_grid(spec: StudySpec, method: Method, base: RunConfig, options: ReproduceOptions) -> list[Dimension]:
    """Return the values to try for a method: weights of its guides, the study's grid, and the options of the user.

    Options that the user gave a value are not tuned.

    Raises:
        UserError: the task has no option that the user wants to tune.
    """
    guides = [x for x in method.overrides.get("guides", ()) if "=" not in x]
    weights = {x: spec.guide_weights.get(guide_name(x)) for x in guides}
    space = {x: Dimension(x, tuple(values), True) for x, values in weights.items() if values}
    option_names = {field.name for field in fields(base)}
    for option, values in spec.grids.get(method.name, {}).items():
        if option not in options.overrides and option in option_names:
            space[option] = Dimension(option, tuple(values))
    for option, *texts in options.over:
        option = normalize_option(option)
        if not texts:
            raise UserError(f"--over {option}: values are missing, as in --over learning_rate 1e-3 1e-4")
        if option not in method.overrides:
            space[option] = Dimension(option, parse_values(base, option, texts, is_guide=False))
    return list(space.values())


def build_base_config(spec: StudySpec, task: str, data: str | None, user_overrides: Overrides) -> RunConfig:
    """Return the configuration that all methods of a task share.

    A task that is not in the study gets the options of the study's first task.

    Args:
        spec: the study.
        task: the task's name in the study.
        data: the path of its data; None for data from the hub.
        user_overrides: options that take precedence over the study's. Weights of guides are not among them.
    """
    task_overrides = spec.tasks.get(task, next(iter(spec.tasks.values())))
    task_name = spec.tasks.get(task, {}).get("task", task)
    config_class: Any = get_task_type(task_name).config_class
    names = {field.name for field in fields(config_class)}
    user_overrides = {option: value for option, value in user_overrides.items() if option not in ("guides", "model")}
    for option in user_overrides.keys() - names:
        logger.warning("%s has no option %s; its runs ignore it", task, option_name(option))
    options = {**PLAIN_ADAM, **spec.options, **task_overrides, **user_overrides}
    options = {name: value for name, value in options.items() if name in names}
    config: RunConfig = config_class(**{**options, "task": task_name, **({} if data is None else {"data": (data,)})})
    return config


def use_paper_settings(config: RunConfig) -> RunConfig:
    """Return a configuration with the settings of the task's paper, for all options that neither study nor user set.

    They are set explicitly, because `headwise train` chooses settings for the number of rows.
    """
    if not isinstance(config, EncoderConfig):  # translation has the settings of its paper
        return config
    assert config.task is not None
    task = MIND if config.task == MIND.name else tasks.get_task(config.task)
    paper = task.from_scratch if is_scheme(config.model) else task.fine_tuning
    settings = Settings(paper.learning_rate, paper.batch_size, paper.epochs, warmup_steps=0.0)
    patience = MIN_PATIENCE if config.early_stopping_patience is None else config.early_stopping_patience
    return fill_unset(replace(config, early_stopping_patience=patience), settings, num_rows=0)


def is_applicable(method: Method, base: RunConfig) -> bool:
    """Return whether a task has the method's options and the model has the guided layers. Log the reason if not."""
    missing_options = method.overrides.keys() - {field.name for field in fields(base)}
    if missing_options:
        logger.warning("skipped %s on %s: it has no option %s", method.name, base.task, ", ".join(missing_options))
        return False
    guides = [text.partition("=")[0] for text in method.overrides.get("guides", ())]
    layers = [int(guide.partition("@")[2]) for guide in guides if "@" in guide]
    model_config = Path(method.overrides.get("model", base.model)) / "config.json"
    if not layers or not model_config.is_file():  # the layers of a model on the hub are unknown
        return True
    num_layers = read_json(model_config).get("num_hidden_layers", max(layers) + 1)
    if max(layers) >= num_layers:
        logger.warning("skipped %s: the model has %d layers", method.name, num_layers)
        return False
    return True


def describe_plan(plan: ReproductionPlan) -> str:
    """Return the number of runs, for the log."""
    num_trials = sum(tuned.num_trials for tuned in plan.tuned)
    seeds = "1 seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    if not num_trials:
        return f"{plan.num_runs} runs with {seeds}"
    return (
        f"{plan.num_runs} runs: {num_trials} trials, {plan.tuned[0].num_trials} for each method, whose dev metrics "
        f"select the settings, and {plan.num_runs - num_trials} runs with {seeds}"
    )
