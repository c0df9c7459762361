"""Compare methods fairly: tuned with equal budgets, with fresh seeds, on many sets. Studies start in order of value.

    python benchmarks/prepare_data.py /data --out prepared
    python benchmarks/fair_studies.py --prepared prepared --model minilm --vectors glove.npz --out out --seconds 1500
    python benchmarks/fair_studies.py --prepared prepared --model minilm --vectors glove.npz --out out --seconds 1500
    python benchmarks/fair_studies.py --out out --summary

Each study is a `headwise compare`, `reproduce` or `sweep` in a directory of its own. After the given number of seconds,
the running studies are interrupted. The same command continues them, and goes on with the next studies. Nothing is
downloaded. `summary.md` and `summary.csv` contain the verdicts of all studies so far. With --at-once 2, a study starts
and ends while another one trains. The jobs of a study that has ended go to the next one, or to those that still run.

    fine-tuning   a pretrained encoder: unchanged, relative positions, distance-aware, MDG, PDG and both, on ten sets
    from-scratch  tables 3 and 4 of the distance-aware paper and more sets: all schemes
    clicks        simulated click logs in which distance, or recency, matters
    figures       figures 3 to 5 of the distance-aware paper: ratings, mappings and adjustments
    guiding       tables 1 to 4 and figures 3 and 6 of the attention guiding paper; rankings with --scifact
    translation   tables 1 to 3 of the relative positions paper, on line-aligned files (--pairs)
    settings      learning rates of LoRA and of retrofitted schemes, on four sets
"""

import argparse
import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
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

#: Variants of distance-aware attention, and the one that the others are compared with; sets on which they are compared.
VARIANTS = {
    "mappings": ("mapping", "learnable-sigmoid", ("clip", "linear", "exponent", "sigmoid")),
    "adjustments": ("adjust", "early-multiply", ("early-add", "late-multiply", "late-add")),
}
VARIANT_SETS = ("amazon-stars", "ag-news")

#: Searches of settings: options of the model, the option that is searched, and its values; sets and training rows.
SETTINGS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "lora": (("--lora",), "learning_rate", ("1e-4", "2.5e-4", "5e-4", "1e-3", "2e-3")),
    "distance-aware": (("--retrofit", "distance-aware"), "scheme_learning_rate", ("5e-5", "5e-4", "5e-3", "2e-2")),
    "rpr": (("--retrofit", "rpr"), "scheme_learning_rate", ("5e-5", "5e-4", "5e-3", "2e-2")),
}
SETTINGS_SETS, SETTINGS_ROWS = ("sst2", "snli", "ag-news", "healthver"), (200, 1000)

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

#: Seconds between two checks whether a study has ended.
POLL_SECONDS = 0.2

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Study:
    """A study.

    Args:
        group: the name of its group.
        name: the name of its directory.
        command: compare, reproduce or sweep.
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
    parser.add_argument("--scifact", help="the directory of SciFact, for rankings")
    parser.add_argument("--out", type=Path, required=True, help="the directory of all studies")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time (default: when done)")
    parser.add_argument("--jobs", type=int, default=12, help="runs of all studies at the same time (default: 12)")
    parser.add_argument("--at-once", type=int, default=1, help="studies at the same time (default: 1)")
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
    yield from build_figures(args, rows, scratch)
    if args.model:
        yield from build_guiding(args, few_rows, budget)
        yield from build_settings(args)
    for table in ("rpr-table1", "rpr-table2", "rpr-table3") if args.pairs else ():
        options = TINY_TRANSLATION.split() if args.tiny else [*TRANSLATION, "--tune", str(args.tune)]
        arguments = (table, "--task", f"en-de={args.pairs}", "--model", "small", *options)
        yield Study("translation", table, "reproduce", arguments)


def build_settings(args: argparse.Namespace) -> Iterator[Study]:
    """Yield searches of learning rates for LoRA and for retrofitted schemes, with the default settings otherwise."""
    for name, (options, option, values) in SETTINGS.items():
        for data in SETTINGS_SETS:
            for rows in SETTINGS_ROWS:
                size = ("--rows", "60", "--epochs", "1") if args.tiny else ("--rows", str(rows))
                model = ("--model", args.model, *options, "--over", option, *values, "--seeds", "3")
                arguments = (*data_options(args.prepared / data), *model, *size)
                yield Study("settings", f"settings-{name}-{data}-{rows}", "sweep", arguments)


def build_figures(args: argparse.Namespace, rows: Sequence[str], options: Sequence[str]) -> Iterator[Study]:
    """Yield the figures of the distance-aware paper."""
    data = data_options(args.prepared / "amazon-stars")
    ratings = (*data, "--label-type", "regression", "--methods", *SCHEMES, *rows, *options)
    yield Study("figures", "ratings-amazon-stars", "compare", ratings)
    for figure, (option, best, others) in VARIANTS.items():
        variant = "{0}=--model distance-aware --scheme-options {1}={0}"
        methods = ("none", f"{best}=--model distance-aware", *(variant.format(x, option) for x in others))
        for name in VARIANT_SETS:
            data = data_options(args.prepared / name)
            arguments = (*data, "--methods", *methods, "--baseline", best, *rows, *options)
            yield Study("figures", f"{figure}-{name}", "compare", arguments)


def build_guiding(args: argparse.Namespace, few_rows: Sequence[str], budget: Sequence[str]) -> Iterator[Study]:
    """Yield the tables and figures of the attention guiding paper."""

    def reproduce(table: str, task: str, *options: str) -> Study:
        path = args.scifact if task == "scifact" else args.prepared / task
        arguments = (table, "--task", f"{task}={path}", "--model", args.model, *options)
        return Study("guiding", f"{table}-{task}", "reproduce", arguments)

    all_rows = few_rows if args.tiny else ()
    layers = [f"AG at layer {layer}" for layer in range(1, 13)]  # those that the model does not have are left out
    shares = [f"AG, {share}%" for share in (20, 40, 60, 80, 100)]
    for name in ("healthver", "multinli", "snli"):
        yield reproduce("guiding-table3", name, *few_rows, *budget)
    if args.scifact:
        yield reproduce("guiding-table3", "scifact", *all_rows, *budget)
    yield reproduce("guiding-table2", "multinli", *few_rows, *budget)  # guides whose packages are missing are skipped
    yield reproduce("guiding-figure3", "multinli", "--methods", *layers, *few_rows, *budget)
    yield reproduce("guiding-figure6", "multinli", "--methods", *shares, *budget)
    yield reproduce("guiding-table1", "snli", *all_rows, *budget)
    yield reproduce("guiding-table4", "snli", *few_rows, "--seeds", str(args.seeds))  # seconds: with --jobs 1


def task_options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the options of built-in tasks on prepared sets."""
    return [option for name in names for option in ("--task", f"{name}={args.prepared / name}")]


def data_options(directory: Path) -> list[str]:
    """Return the options that read a set."""
    text, pair = PAIRS.get(directory.name, ("text", None))
    return ["--data", str(directory), "--text", text, *(["--pair", pair] if pair else ()), "--label", "label"]


def fine_tuning_methods(model: str) -> list[str]:
    """Return the methods of fine-tuning. The unchanged model is added as their control."""
    suffixes = ("retrofit:rpr", "retrofit:distance-aware", "mdg", "pdg", "mdg+pdg")
    return [f"{model}+{suffix}" for suffix in suffixes]


@dataclass
class RunningStudy:
    """A study that runs: its process, and the number of its jobs."""

    study: Study
    process: Process | None = None
    jobs: int = 0


def run_studies(args: argparse.Namespace) -> None:
    """Run the studies, `args.at_once` at the same time, until the time is over."""
    end = time.monotonic() + args.seconds - GRACE_SECONDS
    waiting = deque(select_studies(args))
    running: list[RunningStudy] = []
    try:
        while waiting or running:
            while waiting and len(running) < args.at_once:
                running.append(RunningStudy(waiting.popleft()))
            divide_jobs(args, running)
            for new in (x for x in running if x.process is None):
                new.process = start_study(args, new.study)
            time.sleep(POLL_SECONDS)
            for ended in [x for x in running if x.process is not None and x.process.poll() is not None]:
                running.remove(ended)
                report_end(args, ended)
            if time.monotonic() > end:
                print("time is over", flush=True)
                return
    finally:  # also if this process is stopped
        started = [(x, x.process) for x in running if x.process is not None]
        for _, process in started:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE_SECONDS
        for stopped, process in started:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            report_end(args, stopped)


def divide_jobs(args: argparse.Namespace, running: Sequence[RunningStudy]) -> None:
    """Give the free jobs to the studies with the fewest. Each study has at least one, and never gets fewer."""
    free = max(args.jobs - sum(x.jobs for x in running), sum(not x.jobs for x in running))
    for _ in range(free):
        min(running, key=lambda x: x.jobs).jobs += 1
    for x in running if free else ():
        jobs_file(args, x.study).write_text(str(x.jobs))


def jobs_file(args: argparse.Namespace, study: Study) -> Path:
    """Return the file with the number of jobs of a study, which the study reads again and again."""
    path: Path = args.out / f"{study.name}.jobs"
    return path.absolute()


def select_studies(args: argparse.Namespace) -> Iterator[Study]:
    """Yield the selected studies that are not finished and whose data is there. With --list, only print them."""
    for study in build_studies(args):
        if args.only and not {study.group, study.name} & set(args.only):
            continue
        if args.list:
            print(f"{study.name}: headwise {shlex.join([study.command, *study.arguments])}")
        elif missing := [text for text in study.arguments if is_missing(text, args.prepared)]:
            print(f"{study.name}: skipped, {missing[0]} is missing")
        elif not (args.out / study.name / FINISHED).exists():
            yield study


def report_end(args: argparse.Namespace, ended: RunningStudy) -> None:
    """Print how a study ended, and mark it if it is finished."""
    assert ended.process is not None
    name, code = ended.study.name, ended.process.returncode
    print(f"{name}: {'finished' if code == 0 else f'stopped with exit code {code}'}", flush=True)
    jobs_file(args, ended.study).unlink(missing_ok=True)
    if code == 0:
        (args.out / name / FINISHED).touch()


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


def start_study(args: argparse.Namespace, study: Study) -> Process:
    """Start or continue a study."""
    if study.group == "clicks":
        simulate_log(args, study.name.removeprefix("clicks-"))
    directory = args.out / study.name
    is_new = not (directory / "study.yaml").exists()
    print(f"{study.name}: {'started' if is_new else 'continued'}", flush=True)
    arguments = study.arguments if is_new else ("--resume",)
    command = [*headwise(), study.command, *arguments, "--out", str(directory)]
    environment = os.environ | OFFLINE | {"HEADWISE_JOBS_FILE": str(jobs_file(args, study))}
    with (args.out / f"{study.name}.log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


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
    """Return, for each method of each group, the mean difference over testable sets and the numbers of verdicts."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in (row for row in rows if row["verdict"] != "not testable"):
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
