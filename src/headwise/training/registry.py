"""Registry of task types. Each has a configuration class and a pipeline."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.training.core.config import RunConfig, read_yaml
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.text.config import TextConfig
from headwise.training.translation.config import TranslationConfig

if TYPE_CHECKING:
    from headwise.training.core.pipeline import Pipeline
    from headwise.training.core.run_data import RunData


@dataclass(frozen=True)
class TaskType:
    """A type of task.

    Args:
        config_class: the class of its configuration.
        pipeline_path: the module and the class of its pipeline, which is imported on first use: it needs transformers.
        loader_path: the module and the function that loads the data of a configuration, without transformers.
    """

    config_class: type[RunConfig]
    pipeline_path: str
    loader_path: str

    @property
    def pipeline(self) -> "type[Pipeline[Any, Any, Any]]":
        """The class of its pipeline."""
        module, name = self.pipeline_path.split(":")
        pipeline: type[Pipeline[Any, Any, Any]] = getattr(import_module(module), name)
        return pipeline

    def load_data(self, config: RunConfig) -> "RunData":
        """Load the data of a run.

        Raises:
            UserError: the data is missing or invalid.
        """
        module, name = self.loader_path.split(":")
        data: RunData = getattr(import_module(module), name)(config)
        return data


#: Task types by the name of the task.
TASK_TYPES: dict[str, TaskType] = {
    "mind": TaskType(
        RecommendationConfig,
        "headwise.training.recommendation.pipeline:RecommendationPipeline",
        "headwise.training.recommendation.data:load_data",
    ),
    "translation": TaskType(
        TranslationConfig,
        "headwise.training.translation.pipeline:TranslationPipeline",
        "headwise.training.translation.data:load_data",
    ),
}
#: The type of all other tasks and of the user's own texts.
TEXT = TaskType(TextConfig, "headwise.training.text.pipeline:TextPipeline", "headwise.training.text.data:load_data")


def get_task_type(task: str | None) -> TaskType:
    """Return the type of a task."""
    return TASK_TYPES.get(task or "", TEXT)


def load_config(path: Path) -> RunConfig:
    """Read the `run.yaml` of a run of any type.

    Raises:
        UserError: the file does not exist, is not YAML or contains an invalid option.
    """
    options = read_yaml(path)
    task = options.get("task")
    return get_task_type(task if isinstance(task, str) else None).config_class.from_dict(path, options)
