"""Click logs in the layout of MIND, and their errors."""

import gzip
import pickle
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.arrow_cache import write_arrow
from headwise.tasks.metrics import clicks

NEWS = [("N1", "Rain", "sunny"), ("N2", 'A "quoted" title', ""), ("N3", "Goal", "late")]
TRAIN = [
    "1\tU1\t11/11/2019 9:05:58 AM\tN2 N1\tN1-0 N3-1 N2-0",
    "2\tU2\tt\t\tN3-1",
    "3\tU1\tt\tN1\tN2-0",
]


def news_lines(*news: tuple[str, str, str]) -> list[str]:
    return ["\t".join((name, "news", "world", title, abstract, "", "[]", "[]")) for name, title, abstract in news]


def many_lines(count: int) -> list[str]:
    return [f"{number}\tU\tt\t{'N1 ' * (number % 3)}\tN2-1 {'N3-0 ' * (number % 4)}" for number in range(count)]


def write_split(path: Path, news: list[str], behaviors: list[str]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, lines in (("news.tsv", news), ("behaviors.tsv", behaviors)):
        (path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> mind.Log:
    return mind.read(path, cache=path.parent / "cache")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_split(tmp_path / "log" / "MINDsmall_train", news_lines(*NEWS), TRAIN)
    return tmp_path / "log"


def test_ids_are_replaced_by_indices(data: Path) -> None:
    log = read(data)
    assert log.news.data["id"][:] == ["N1", "N2", "N3"]
    assert log.news.data["title"][:] == ["Rain", 'A "quoted" title', "Goal"]
    rows = log.splits["train"].rows.data
    assert rows["impression"][:] == ["1", "2", "3"]
    assert rows["user"][:] == ["U1", "U2", "U1"]
    assert rows["time"][0] == "11/11/2019 9:05:58 AM"
    assert rows["history"][:] == [[1, 0], [], [0]]
    assert rows["candidates"][:] == [[0, 2, 1], [2], [1]]
    assert rows["clicked"][:] == [[0, 1, 0], [1], [0]]


def test_impressions_without_auc_are_counted(data: Path) -> None:
    counts = read(data).splits["train"].counts
    assert counts == {"impressions": 3, "without_history": 1, "only_clicks": 1, "only_non_clicks": 1}


def test_parts_are_flat_arrays(data: Path) -> None:
    (part,) = read(data).splits["train"].parts()
    np.testing.assert_array_equal(part.candidates, [0, 2, 1, 2, 1])
    np.testing.assert_array_equal(part.clicked, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(part.offsets, [0, 3, 4, 5])
    np.testing.assert_array_equal(part.history, [1, 0, 0])
    np.testing.assert_array_equal(part.history_offsets, [0, 2, 2, 3])
    assert clicks.compute(part.candidates, part.clicked, part.offsets)["auc"] == 1.0


def test_separators_and_new_ids_in_later_batches_do_not_change_the_lists(tmp_path: Path) -> None:
    names = [f"N{number}" for number in range(1, 2501)]
    news = news_lines(*((name, name, "") for name in names))
    histories = ["" if number % 5 == 0 else f"N1 {name}" for number, name in enumerate(names)]
    for name, space in (("single", " "), ("double", "  "), ("other", "\u00a0")):
        lines = [
            f"{number}\tU\tt\t{histories[number]}\t{name}-1{space}N2-0".replace("N1 ", f"N1{space}")
            for number, name in enumerate(names)
        ]
        write_split(tmp_path / name / "train", news, lines)
        rows = read(tmp_path / name).splits["train"].rows.data
        assert rows["history"][:] == [[] if number % 5 == 0 else [0, number] for number in range(2500)]
        assert rows["candidates"][:] == [[number, 1] for number in range(2500)]
        assert rows["clicked"][:] == [[1, 0]] * 2500


def test_parts_contain_every_row(tmp_path: Path) -> None:
    write_split(tmp_path / "log" / "train", news_lines(*NEWS), many_lines(2500))
    split = read(tmp_path / "log").splits["train"]
    parts = list(split.parts())
    assert len(parts) > 1
    assert sum(len(part.offsets) - 1 for part in parts) == len(split) == 2500
    sizes = np.concatenate([np.diff(part.offsets) for part in parts])
    np.testing.assert_array_equal(sizes, [1 + number % 4 for number in range(2500)])
    assert split.counts["only_clicks"] == 625


def test_slices_cross_batches(tmp_path: Path) -> None:
    write_split(tmp_path / "log" / "train", news_lines(*NEWS), many_lines(2500))
    split = read(tmp_path / "log").splits["train"].slice(100, 2400).slice(800, 2050)
    assert [len(part.offsets) - 1 for part in split.parts()] == [100, 1000, 150]
    sizes = np.concatenate([np.diff(part.offsets) for part in split.parts()])
    np.testing.assert_array_equal(sizes, [1 + number % 4 for number in range(900, 2150)])
    ids = [name for strings in split.strings("impression") for name in strings.to_pylist()]
    assert ids == [str(number) for number in range(900, 2150)]
    for empty in (split.slice(0, 0), split.slice(1250, 1250)):
        assert list(empty.parts()) == list(empty.strings("user")) == []


def test_a_split_is_sent_as_the_name_of_its_file(tmp_path: Path) -> None:
    write_split(tmp_path / "log" / "train", news_lines(*NEWS), many_lines(2500))
    split = read(tmp_path / "log").splits["train"].slice(1, 2400)
    data = pickle.dumps(split)
    assert len(data) < len(split)
    for ours, sent in zip(split.parts(), pickle.loads(data).parts(), strict=True):
        np.testing.assert_array_equal(ours.candidates, sent.candidates)


def read_own_memory() -> int:
    """Return the memory of this process without memory-mapped files, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not report memory in /proc")
def test_memory_does_not_grow_with_the_number_of_batches(tmp_path: Path) -> None:
    """Arrow needs 16 kB for each batch that is open."""
    num_batches = 5000
    write_split(tmp_path / "log" / "train", news_lines(*NEWS), TRAIN)
    file = read(tmp_path / "log").splits["train"].rows.file
    (batch,) = pa.ipc.open_stream(file.read_bytes())
    write_arrow(file, [batch.columns] * num_batches, batch.schema)
    before = read_own_memory()
    split = read(tmp_path / "log").splits["train"]
    assert sum(len(part.offsets) - 1 for part in split.parts()) == num_batches * len(TRAIN)
    assert len(split.slice(10, 20).take([3]).offsets) == 2
    assert read_own_memory() - before < 1000 * num_batches


def test_splits_share_news(data: Path) -> None:
    write_split(data / "MINDsmall_dev", news_lines(("N4", "Snow", ""), NEWS[0]), ["1\tU1\tt\tN1\tN4-1 N3-0"])
    test = write_split(data / "MINDlarge_test", news_lines(NEWS[1]), ["7\tU1\tt\tN4\tN4 N1"])
    (test / "behaviors.tsv.gz").write_bytes(gzip.compress((test / "behaviors.tsv").read_bytes()))
    (test / "behaviors.tsv").unlink()
    log = read(data)
    assert log.news.data["id"][:] == ["N1", "N2", "N3", "N4"]
    assert list(log.splits) == ["train", "dev", "test"]
    assert log.splits["dev"].rows.data["candidates"][:] == [[3, 2]]
    assert log.splits["test"].rows.data["candidates"][:] == [[3, 0]]
    assert not log.splits["test"].labelled
    assert [part.clicked for part in log.splits["test"].parts()] == [None]
    assert log.splits["test"].counts == {"impressions": 1, "without_history": 0}


def test_indices_change_with_the_news(data: Path) -> None:
    assert read(data).splits["train"].rows.data["history"][0] == [1, 0]
    write_split(data / "MINDsmall_train", news_lines(*reversed(NEWS)), TRAIN)
    assert read(data).splits["train"].rows.data["history"][0] == [1, 2]


@pytest.mark.parametrize(
    ("news", "behaviors", "message"),
    [
        ([], ["4\tU\tt\tN1 N9\tN1-1"], "behaviors.tsv, line 4: column 'history': news 'N9' is in no news.tsv"),
        ([], ["4\tU\tt\tN1\tN9-1"], "behaviors.tsv, line 4: column 'impressions': news 'N9' is in no news.tsv"),
        ([], ["4\tU\tt\tN1\tN1-2"], "behaviors.tsv, line 4: column 'impressions': expected a news id with a label"),
        ([], ["4\tU\tt\tN1\tN1"], "such as N123-0 or N123-1, got 'N1'"),
        ([], ["4\tU\tt\tN1\t"], "behaviors.tsv, line 4: column 'impressions': no candidates"),
        (
            [],
            ["4\tU\tN1\tN1-1"],
            "behaviors.tsv, line 4: expected 5 fields (id, user, time, history, impressions), got 4",
        ),
        ([], [""], "history, impressions), got 1"),
        (["N4\tnews\tworld\tSnow"], [], "news.tsv, line 4: expected 8 fields (id, category, subcategory, title"),
        (news_lines(("N1", "Rain", "")), [], "news.tsv, line 4: news 'N1' is repeated, see"),
    ],
    ids=["history", "candidate", "label", "no-label", "no-candidates", "fields", "empty", "news-fields", "twice"],
)
def test_invalid_lines_raise_errors(data: Path, news: list[str], behaviors: list[str], message: str) -> None:
    write_split(data / "MINDsmall_train", [*news_lines(*NEWS), *news], [*TRAIN, *behaviors])
    with pytest.raises(UserError, match=re.escape(message)):
        read(data)


def test_different_titles_of_an_id_raise_an_error(data: Path) -> None:
    write_split(data / "dev", news_lines(("N2", "Another", "")), TRAIN[:1])
    with pytest.raises(
        UserError, match=r"dev/news.tsv, line 1: news 'N2' has another title in .*train/news.tsv, line 2"
    ):
        read(data)


def test_invalid_directories_raise_errors(data: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such directory"):
        read(data / "nowhere")
    (data / "dev" / "empty").mkdir(parents=True)
    with pytest.raises(UserError, match=r"expected directories train, dev and test, .*; found directories: none"):
        read(data / "dev" / "empty")
    (data / "dev" / "empty").rmdir()
    with pytest.raises(UserError, match=r"dev: news.tsv is missing"):
        read(data)
    write_split(data / "dev", news_lines(*NEWS), [])
    with pytest.raises(UserError, match=r"dev/behaviors.tsv: the file has no rows"):
        read(data)
    write_split(data / "MINDlarge_train", [], [])
    with pytest.raises(UserError, match=r"several directories for train: MINDlarge_train, MINDsmall_train"):
        read(data)


def test_take_returns_any_rows(tmp_path: Path) -> None:
    write_split(tmp_path / "log" / "train", news_lines(*NEWS), many_lines(2500))
    split = read(tmp_path / "log").splits["train"]
    rows = np.array([2499, 3, 3, 1024, 0, 1023])
    impressions, stored = split.take(rows), split.rows.data
    assert impressions.clicked is not None
    for name, values, offsets in (
        ("candidates", impressions.candidates, impressions.offsets),
        ("clicked", impressions.clicked, impressions.offsets),
        ("history", impressions.history, impressions.history_offsets),
    ):
        expected = [stored[int(row)][name] for row in rows]
        assert [values[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert len(split.take([]).candidates) == 0


def test_a_single_split_can_be_read(data: Path) -> None:
    assert list(read(data / "MINDsmall_train").splits) == ["train"]
    other = write_split(data / "MINDlarge_x", news_lines(*NEWS), TRAIN)
    assert list(read(other).splits) == ["test"]


def test_only_simulated_logs_have_an_oracle(data: Path) -> None:
    assert mind.oracle(data) == {}
    (data / "truth.json").write_text("[]")
    with pytest.raises(UserError, match=r"truth.json: no metrics of the oracle"):
        mind.oracle(data)


DAYS = [
    "1\tU1\t11/12/2019 11:05:58 PM\tN2\tN1-0 N3-1",
    "2\tU2\t11/14/2019 12:00:01 AM\tN1\tN1-1 N3-0",
    "3\tU1\t11/13/2019 9:05:58 AM\tN1\tN2-0 N1-1",
    "4\tU3\t11/14/2019 9:05:58 AM\tN3\tN2-0 N3-1",
]


def test_the_last_day_of_train_is_dev_if_test_has_no_labels(tmp_path: Path) -> None:
    """Lines are not in the order of time, and test is the published dev."""
    for name, lines in {"train": DAYS, "dev": ["9\tU1\t11/15/2019 9:00:00 AM\t\tN1-1 N2-0"]}.items():
        write_split(tmp_path / "log" / f"MINDsmall_{name}", news_lines(*NEWS), lines)
    write_split(tmp_path / "log" / "MINDsmall_test", news_lines(*NEWS), ["8\tU1\t11/16/2019 9:00:00 AM\t\tN1 N2"])
    log = mind.read(tmp_path / "log", splits="last-day", cache=tmp_path / "cache")
    ids = {name: split.rows.data["impression"][:] for name, split in log.splits.items()}
    assert ids == {"train": ["1", "3"], "dev": ["2", "4"], "test": ["9"]}
    np.testing.assert_array_equal(log.splits["dev"].take([1]).candidates, [1, 2])
    published = read(tmp_path / "log").splits
    assert {name: len(split) for name, split in published.items()} == {"train": 4, "dev": 1, "test": 1}


def test_published_splits_are_kept_if_test_has_labels(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        write_split(tmp_path / "log" / name, news_lines(*NEWS), DAYS)
    log = mind.read(tmp_path / "log", splits="last-day", cache=tmp_path / "cache")
    assert {name: len(split) for name, split in log.splits.items()} == {"train": 4, "dev": 4, "test": 4}


@pytest.mark.parametrize(
    ("lines", "message"),
    [(DAYS[1:2], "all impressions are of one day"), (TRAIN, "behaviors.tsv, line 2: expected a time such as")],
)
def test_days_that_cannot_be_split(tmp_path: Path, lines: list[str], message: str) -> None:
    for name in ("train", "dev"):
        write_split(tmp_path / "log" / name, news_lines(*NEWS), lines)
    with pytest.raises(UserError, match=message):
        mind.read(tmp_path / "log", splits="last-day", cache=tmp_path / "cache")
