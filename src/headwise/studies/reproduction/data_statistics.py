"""Statistics of the data sets (tables 1 and 2 of Wu et al. 2021), next to those that the paper prints."""

from collections.abc import Mapping

from datasets import Dataset

from headwise import tasks
from headwise.errors import UserError
from headwise.models import count_words
from headwise.studies.tables import TextTable
from headwise.tasks import mind
from headwise.training.text.config import TextConfig
from headwise.training.text.data import load_data
from headwise.training.text.model import iterate_texts

SPLITS = ("train", "dev", "test")

#: The rows of Table 1: train, dev and test rows, classes, and mean length, as printed. Misprints are marked.
PAPER_TABLE1 = {
    "ag-news": ("108k", "12k", "7.6k", "4", "44"),
    "amazon-electronics": ("40k", "5k", "5k", "5", "133"),
    "sst2": ("8k", "1k", "2k", "2", "19"),
    "snli": ("55k (sic)", "10k", "10k", "2 (sic)", "22"),  # SNLI has 550k rows and 3 classes
}
#: The values of Table 2, as printed.
PAPER_TABLE2 = {
    "users": "1,000,000",
    "news": "161,013",
    "impressions": "500,000",
    "mean title length": "11.52",
    "clicks": "5,597,979",
    "non-clicks": "136,162,621",
}


def build_text_table(data_by_task: Mapping[str, str | None]) -> TextTable:
    """Return the sizes, classes and mean lengths of data sets (table 1).

    Args:
        data_by_task: tasks with the paths of their data, or None for data from the hub.

    Raises:
        UserError: a task is unknown or has no labelled texts, or its data is missing.
    """
    rows = []
    for task, data in (data_by_task or dict.fromkeys(PAPER_TABLE1)).items():
        if tasks.get_task(task).label_type in ("clicks", "translation"):
            raise UserError(f"--task {task}: da-table1 is about labelled texts; da-table2 is about MIND")
        examples = load_data(TextConfig(task=task, data=(data,) if data else ())).examples
        sizes = [f"{len(examples.splits[split]):,}" if split in examples.splits else "" for split in SPLITS]
        own = (*sizes, str(len(examples.labels)), f"{mean_length(examples.splits['train']):.1f}")
        rows.append((task, "ours", *own))
        if task in PAPER_TABLE1:
            rows.append((task, "paper", *PAPER_TABLE1[task]))
    header = ("data set", "", *SPLITS, "classes", "mean length")
    title = "Statistics of the data sets, Table 1; lengths are words of train, of both texts of a pair"
    return TextTable(title, header, tuple(rows))


def mean_length(rows: Dataset) -> float:
    """Return the mean number of words of a row; of pairs, of both texts."""
    return sum(count_words(iterate_texts(rows)).values()) / max(1, len(rows))


def build_mind_table(data_by_task: Mapping[str, str | None]) -> TextTable:
    """Return the numbers of users, news, impressions and clicks of a log, and the mean length of titles (table 2).

    Raises:
        UserError: the log is missing or invalid.
    """
    data = data_by_task.get("mind")
    if data is None or len(data_by_task) > 1:
        raise UserError("da-table2 needs one click log: --task mind=PATH")
    log = mind.read(data)
    users: set[str] = set()
    num_impressions = num_clicks = num_candidates = 0
    for split in log.splits.values():
        for part_users in split.strings("user"):
            users.update(part_users.to_pylist())
        num_impressions += len(split)
        for part in split.parts():
            if part.clicked is not None:
                num_clicks += int(part.clicked.sum())
                num_candidates += len(part.clicked)
    num_words = sum(count_words(title for batch in log.news.data.iter(1000) for title in batch["title"]).values())
    own = {
        "users": f"{len(users):,}",
        "news": f"{len(log.news):,}",
        "impressions": f"{num_impressions:,}",
        "mean title length": f"{num_words / len(log.news):.2f}",
        "clicks": f"{num_clicks:,}",
        "non-clicks": f"{num_candidates - num_clicks:,}",
    }
    rows = tuple((name, own[name], PAPER_TABLE2[name]) for name in PAPER_TABLE2)
    return TextTable("Statistics of the click log, Table 2", ("", "ours", "paper"), rows)
