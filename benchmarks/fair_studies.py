"""Compare methods fairly: tuned with equal budgets, with fresh seeds, on many data sets. Studies run in order of value.

    python benchmarks/prepare_data.py /data --out prepared
    python benchmarks/fair_studies.py --prepared prepared --model minilm --vectors glove.npz --out out --seconds 1500
    python benchmarks/fair_studies.py --prepared prepared --model minilm --vectors glove.npz --out out --seconds 1500
    python benchmarks/fair_studies.py --out out --summary

Each study is a `headwise compare` or `headwise reproduce` in a directory of its own. After the given number of seconds,
the running study is interrupted. The same command continues it, and goes on with the next studies. Nothing is
downloaded. `summary.md` and `summary.csv` contain the verdicts of all studies so far.

    fine-tuning   a pretrained encoder: unchanged, relative positions, distance-aware, MDG, PDG and both, on ten sets
    from-scratch  tables 3 and 4 of the distance-aware paper and more sets: all schemes
    clicks        simulated click logs in which distance, or recency, matters
    guiding       table 3 of the attention guiding paper
    translation   tables 1 to 3 of the relative positions paper, on line-aligned files (--pairs)
"""

import argparse
import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

#: Sets of text pairs, and of texts, in the order in which they are used.
PAIRS = {
    "scitail": ("premise", "hypothesis"),
    "healthver": ("evidence", "claim"),
    "multinli": ("premise", "hypothesis"),
    "snli": ("premise", "hypothesis"),
}
TEXTS = ("sst2", "sst5", "amazon-stars", "ag-news", "amazon-binary", "imdb")

#: Tables of the distance-aware paper and their tasks, of which the sets are there; and further sets.
DISTANCE_AWARE_TABLES = {"da-table4": ("sst2", "snli"), "da-table3": ("ag-news",)}
FROM_SCRATCH = ("sst2", "sst5", "amazon-stars", "amazon-binary", "imdb")

#: Schemes that are trained from scratch, with the control.
SCHEMES = ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")

#: A tenth of the default learning rate of retrofitted schemes, at the default learning rate of the model.
TENTH_OF_SCHEME_RATE = 5e-4

#: Studies get this long to stop, after an interrupt.
GRACE_SECONDS = 45.0

#: Options of translators: to early stopping.
TRANSLATION = ["--vocabulary", "8192", "--epochs", "60", "--seeds", "5"]

#: Options with which everything is tiny, to check that all studies run.
TINY = ["--epochs", "1", "--batch-size", "16", "--seeds", "2", "--tune", "2"]
TINY_SIZES = ["--heads", "2", "--head-dim", "8"]
TINY_TRANSLATION = (
    "--rows 60 --steps 4 --layers 1 --heads 2 --head-dim 8 --feedforward 16 --vocabulary 300 --max-length "
)
TINY_TRANSLATION += "256 --clip --batch-size 1000 --warmup 2 --beams 1 --seeds 2 --tune 2"

FINISHED = "finished"


@dataclass(frozen=True)
class Study:
    """A study.

    Args:
        group: the name of its group.
        name: the name of its directory.
        command: compare or reproduce.
        arguments: the arguments of the command, without --out.
    """

    group: str
    name: str
    command: str
    arguments: tuple[str, ...]


def main() -> None:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # interrupts the study
    if not args.summary:
        run_studies(args)
    print(write_summary(args.out))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path, help="the sets that benchmarks/prepare_data.py made")
    parser.add_argument("--model", help="the pretrained encoder, a directory")
    parser.add_argument("--vectors", help="word vectors for models that are trained from scratch")
    parser.add_argument("--pairs", help="a directory with line-aligned files of en, de and fr, for translation")
    parser.add_argument("--out", type=Path, required=True, help="the directory of all studies")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time (default: when done)")
    parser.add_argument("--jobs", type=int, default=12, help="runs at the same time (default: 12)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds of each method (default: 10)")
    parser.add_argument("--tune", type=int, default=8, help="dev trials of each method (default: 8)")
    parser.add_argument("--rows", type=int, default=2000, help="training rows of fine-tuning (default: 2000)")
    parser.add_argument("--options", default="", help='options of texts and clicks: --options="--epochs 5"')
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these groups or studies")
    parser.add_argument("--tiny", action="store_true", help="train tiny models on 60 rows, to check that studies run")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    parser.add_argument("--summary", action="store_true", help="only summarize the studies that are there")
    args = parser.parse_args()
    if not args.summary and args.prepared is None:
        parser.error("--prepared is required")
    return args


def build_studies(args: argparse.Namespace) -> Iterator[Study]:
    """Yield all studies whose data is there, in the order of their value."""
    budget = TINY if args.tiny else ["--seeds", str(args.seeds), "--tune", str(args.tune)]
    budget = [*budget, *shlex.split(args.options)]
    rows = ["--rows", "60"] if args.tiny else []
    few_rows = rows or ["--rows", str(args.rows)]
    scratch = [*(["--vectors", args.vectors] if args.vectors else ()), *(TINY_SIZES if args.tiny else ()), *budget]
    for name in (*PAIRS, *TEXTS) if args.model else ():
        methods = fine_tuning_methods(args.model)
        arguments = (*data_options(args.prepared / name), "--methods", *methods, *few_rows, *budget)
        yield Study("fine-tuning", f"fine-tuning-{name}", "compare", arguments)
    for table, names in DISTANCE_AWARE_TABLES.items():
        yield Study("from-scratch", table, "reproduce", (table, *task_options(args, names), *rows, *scratch))
    for name in FROM_SCRATCH:
        arguments = (*data_options(args.prepared / name), "--methods", *SCHEMES, *rows, *scratch)
        yield Study("from-scratch", f"from-scratch-{name}", "compare", arguments)
    for mode in ("distance", "recency"):
        data = ("--task", "mind", "--data", str(args.out / "logs" / mode))
        yield Study("clicks", f"clicks-{mode}", "compare", (*data, "--methods", *SCHEMES, *scratch))
    if args.model:
        tasks = task_options(args, ("snli", "healthver"))
        arguments = ("guiding-table3", *tasks, "--model", args.model, *few_rows, *budget)
        yield Study("guiding", "guiding-table3", "reproduce", arguments)
    for table in ("rpr-table1", "rpr-table2", "rpr-table3") if args.pairs else ():
        options = TINY_TRANSLATION.split() if args.tiny else [*TRANSLATION, "--tune", str(args.tune)]
        arguments = (table, "--task", f"en-de={args.pairs}", "--model", "small", *options)
        yield Study("translation", table, "reproduce", arguments)


def task_options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the options of built-in tasks on prepared sets."""
    return [option for name in names for option in ("--task", f"{name}={args.prepared / name}")]


def data_options(directory: Path) -> list[str]:
    """Return the options that read a set."""
    text, pair = PAIRS.get(directory.name, ("text", None))
    return ["--data", str(directory), "--text", text, *(["--pair", pair] if pair else ()), "--label", "label"]


def fine_tuning_methods(model: str) -> list[str]:
    """Return the methods of fine-tuning. The unchanged model is added as their control."""
    distance = f"--model {shlex.quote(model)} --retrofit distance-aware --scheme-learning-rate {TENTH_OF_SCHEME_RATE}"
    suffixes = ("retrofit:rpr", "retrofit:distance-aware", "mdg", "pdg", "mdg+pdg")
    return [*(f"{model}+{suffix}" for suffix in suffixes), f"distance-at-a-tenth={distance}"]


def run_studies(args: argparse.Namespace) -> None:
    """Run the studies one after another, until the time is over."""
    end = time.monotonic() + args.seconds
    for study in build_studies(args):
        directory = args.out / study.name
        if args.only and not {study.group, study.name} & set(args.only):
            continue
        if args.list:
            print(f"{study.name}: headwise {shlex.join([study.command, *study.arguments])}")
            continue
        if (directory / FINISHED).exists():
            continue
        if missing := [text for text in study.arguments if is_missing(text, args.prepared)]:
            print(f"{study.name}: skipped, {missing[0]} is missing")
            continue
        if end - time.monotonic() < GRACE_SECONDS:
            print("time is over")
            return
        if study.group == "clicks":
            simulate_log(args, study.name.removeprefix("clicks-"))
        print(f"{study.name}: {'continued' if (directory / 'study.yaml').exists() else 'started'}", flush=True)
        code = run_study(study, directory, args.jobs, end - time.monotonic() - GRACE_SECONDS)
        print(f"{study.name}: {'finished' if code == 0 else f'stopped with exit code {code}'}", flush=True)
        if code == 0:
            (directory / FINISHED).touch()


def is_missing(argument: str, prepared: Path) -> bool:
    """Return whether an argument names a prepared set that is not there."""
    path = argument.rpartition("=")[2]
    return path.startswith(f"{prepared}{os.sep}") and not Path(path).is_dir()


def simulate_log(args: argparse.Namespace, mode: str) -> None:
    """Simulate a click log, if it is not there yet, with the titles of AG News."""
    log = args.out / "logs" / mode
    if log.exists():
        return
    titles = args.prepared / "ag-news" / "test.csv"
    size = "--impressions 200 --users 20 --history 8 --candidates 5" if args.tiny else "--impressions 20000"
    options = ["--titles", str(titles), "--text", "text", "--label", "label", "--clicks", mode, *size.split()]
    subprocess.run([*headwise(), "simulate", "mind", *options, "--out", str(log)], check=True)


def headwise() -> list[str]:
    """Return the command of headwise."""
    return [sys.executable, "-m", "headwise"]


def run_study(study: Study, directory: Path, jobs: int, seconds: float) -> int:
    """Start or continue a study, and interrupt it after a time. Return its exit code."""
    is_new = not (directory / "study.yaml").exists()
    arguments = study.arguments if is_new else ("--resume",)
    command = [*headwise(), study.command, *arguments, "--jobs", str(jobs), "--out", str(directory)]
    with (directory.parent / f"{study.name}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | OFFLINE)
        try:
            return process.wait(timeout=None if seconds == float("inf") else max(1.0, seconds))
        except subprocess.TimeoutExpired:
            return interrupt(process)
        except BaseException:  # this process is stopped
            interrupt(process)
            raise


def interrupt(process: "subprocess.Popen[bytes]") -> int:
    """Interrupt a study, which can be continued afterwards. Return its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


#: Nothing is downloaded, and many processes share the cores.
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def write_summary(out: Path) -> str:
    """Write summary.csv and summary.md, and return the latter."""
    rows = [row | {"study": path.parent.name} for path in sorted(out.glob("*/table.csv")) for row in read_rows(path)]
    compared = [row for row in rows if row["difference"]]
    columns = ("study", "task", "method", "baseline", "seeds", "mean", "difference", "ci_low", "ci_high", "p_holm")
    with (out / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, (*columns, "verdict"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(compared)
    lines = ["| study | method | difference | 95% CI | p (Holm) | verdict | seeds |", "|---|---|--:|--:|--:|---|--:|"]
    for row in compared:
        name = row["study"] if row["task"] in row["study"] else f"{row['study']}, {row['task']}"
        interval = f"[{format_number(row['ci_low'])}, {format_number(row['ci_high'])}]"
        cells = (name, row["method"], format_number(row["difference"]), interval, format_number(row["p_holm"], 3))
        lines.append(f"| {' | '.join(cells)} | {row['verdict']} | {row['seeds']} |")
    lines += ["", "| group | method | sets | mean difference | better | worse |", "|---|---|--:|--:|--:|--:|"]
    lines += summarize_groups(compared)
    text = "\n".join(lines) + "\n"
    (out / "summary.md").write_text(text, encoding="utf-8")
    return text


def summarize_groups(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return, for each method of each group with several sets, the mean difference and the numbers of verdicts."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        for group in ("fine-tuning", "from-scratch"):
            if row["study"].startswith((group, "da-") if group == "from-scratch" else group):
                groups.setdefault((group, row["method"]), []).append(row)
    lines = []
    for (group, method), found in groups.items():
        mean = fmean(float(row["difference"]) for row in found)
        counts = [sum(row["verdict"] == verdict for row in found) for verdict in ("better", "worse")]
        lines.append(f"| {group} | {method} | {len(found)} | {mean:+.2f} | {counts[0]} | {counts[1]} |")
    return lines


def format_number(text: str, digits: int = 2) -> str:
    """Return a rounded number; – if it is missing."""
    return "–" if text in ("", "nan") else f"{float(text):.{digits}f}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a table of a study."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
