"""Each label type from training to `evaluate` and `predict`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard

from headwise.errors import UserError
from headwise.training import RunResult, TextConfig, TextModel, evaluate, predict, train
from tests.training.conftest import GOOD, rows, write

SMALL: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "learning_rate": 0.01}


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_evaluation(run: RunResult) -> None:
    """Check that `evaluate` gives the test metrics of the run."""
    evaluation = evaluate(run.run_dir)
    assert evaluation["metrics"] == pytest.approx(run.metrics["metrics"]["test"], abs=1e-6)
    assert evaluation["standard_error"] == pytest.approx(run.metrics["standard_error"]["test"], abs=1e-6)
    assert evaluation["baselines"] == run.metrics["baselines"]["test"]


def check_probabilities(row: dict[str, Any], labels: list[str]) -> None:
    """Check that the predicted label is the most probable one."""
    probabilities = {label: row[f"probability_{label}"] for label in labels}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert row["predicted"] == max(probabilities, key=lambda label: probabilities[label])


def test_pairs(tmp_path: Path) -> None:
    texts = rows(60)
    lines = [
        (a, b, "same" if x == y else "other")
        for shift in (2, 3)
        for (a, x), (b, y) in zip(texts, texts[shift:] + texts[:shift], strict=True)
    ]
    data = write(tmp_path / "pairs.csv", ("premise", "hypothesis", "label"), list(lines))
    run = train(TextConfig(data=(str(data),), epochs=1, pooling="cls", **SMALL), tmp_path / "run")
    check_evaluation(run)
    new = tmp_path / "new.jsonl"
    new.write_text('{"premise": "good film", "hypothesis": "bad"}\n{"premise": "good film"}\n')
    assert predict(run.run_dir, new, tmp_path / "out.jsonl") == 1
    first, second = read_lines(tmp_path / "out.jsonl")
    check_probabilities(first, ["other", "same"])
    assert second["predicted"] is None
    single = write(tmp_path / "single.csv", ("text", "label"), [("good", "same")])
    for call in (lambda: evaluate(run.run_dir, single), lambda: predict(run.run_dir, single, tmp_path / "o.csv")):
        with pytest.raises(UserError, match="this model expects two texts per row"):
            call()


def test_siamese_pairs_have_a_cls_token_each(tmp_path: Path) -> None:
    lines = [(text, text, label) for text, label in rows(40)]
    data = write(tmp_path / "pairs.csv", ("premise", "hypothesis", "label"), list(lines))
    run = train(TextConfig(data=(str(data),), epochs=1, pooling="cls", pairs="siamese", **SMALL), tmp_path / "run")
    encoder = TextModel.load(run.run_dir).encoder
    encoded = encoder.encode({"text": ["good"], "pair": ["film"]})
    assert encoded["input_ids"][0][0] == encoded["pair_input_ids"][0][0] == encoder.tokenizer.cls_token_id


def test_regression(tmp_path: Path) -> None:
    lines = [(text, "4.5" if label == "positive" else "1") for text, label in rows(80)]
    data = write(tmp_path / "rated.csv", ("text", "stars"), list(lines))
    run = train(TextConfig(data=(str(data),), label_type="regression", epochs=2, **SMALL), tmp_path / "run")
    check_evaluation(run)
    assert "adds a number to each row" in (run.run_dir / "README.md").read_text()
    constant = write(tmp_path / "constant.csv", ("text", "stars"), [("good film", "3"), ("bad film", "3")])
    assert evaluate(run.run_dir, constant)["metrics"]["pearson"] == 0
    predict(run.run_dir, constant, tmp_path / "out.jsonl")
    assert all(isinstance(row["predicted"], float) and len(row) == 3 for row in read_lines(tmp_path / "out.jsonl"))


def test_multi_label(tmp_path: Path) -> None:
    lines = [(text, f"{label}|long" if len(text) > 40 else label) for text, label in rows(80)]
    data = write(tmp_path / "several.csv", ("text", "labels"), list(lines))
    run = train(TextConfig(data=(str(data),), label_type="multi-label", epochs=3, **SMALL), tmp_path / "run")
    check_evaluation(run)
    new = write(tmp_path / "new.csv", ("text", "labels"), [("a good film", "positive"), ("a bad film", "")])
    assert evaluate(run.run_dir, new)["rows"] == 2
    predict(run.run_dir, new, tmp_path / "out.jsonl")
    thresholds = run.metrics["decision"]["thresholds"]
    for row in read_lines(tmp_path / "out.jsonl"):
        probable = [x for x in ("long", "negative", "positive") if row[f"probability_{x}"] > thresholds[x]]
        assert sorted(row["predicted"].split("|")) == sorted(probable or [""])


def test_hierarchical_documents(tmp_path: Path) -> None:
    lines = [(f"{text}. {text}! {text}.", label) for text, label in rows(60)]
    data = write(tmp_path / "long.csv", ("text", "label"), list(lines))
    run = train(TextConfig(data=(str(data),), hierarchy=(8, 3), epochs=1, **SMALL), tmp_path / "run")
    check_evaluation(run)
    predict(run.run_dir, data, tmp_path / "out.jsonl")
    for row in read_lines(tmp_path / "out.jsonl"):
        check_probabilities(row, ["negative", "positive"])


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    lines = [f"{w} x {'B-GOOD' if w in GOOD else 'O'}" for text, _ in rows(100) for w in [*text.split(), ""]]
    path = tmp_path / "tags.conll"
    path.write_text("\n".join("" if line.startswith(" ") else line for line in lines))
    return path


def test_tagging(tagged: Path, tmp_path: Path) -> None:
    run = train(TextConfig(data=(str(tagged),), label_type="tokens", epochs=6, max_length=9, **SMALL), tmp_path / "run")
    assert any("truncated to 9 tokens (--max-length)" in note for note in run.metrics["notes"])
    check_evaluation(run)
    new = tmp_path / "new.conll"
    new.write_text("-DOCSTART- x O\n\n# a comment\na x O\ngood x O\n\n\nfilm x O\n")
    assert predict(run.run_dir, new, tmp_path / "new_dir" / "out.conll") == 0
    assert (tmp_path / "new_dir" / "out.conll").read_text() == (
        "-DOCSTART- x O\n\n# a comment\na x O O\ngood x O B-GOOD\n\n\nfilm x O O\n"
    )
    (tmp_path / "words.txt").write_text("a\ngood\nfilm\n")  # without tags
    predict(run.run_dir, tmp_path / "words.txt", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "a O\ngood B-GOOD\nfilm O\n"
    (tmp_path / "new.jsonl").write_text('{"words": ["a", "good"], "id": 7}\n{"words": []}\n')
    assert predict(run.run_dir, tmp_path / "new.jsonl", tmp_path / "out.jsonl") == 1
    assert read_lines(tmp_path / "out.jsonl")[0] == {"words": ["a", "good"], "id": 7, "predicted": ["O", "B-GOOD"]}
    text = new.read_text()
    with pytest.raises(UserError, match="the output is the input file"):
        predict(run.run_dir, new, new)
    assert new.read_text() == text
    (tmp_path / "new.jsonl").write_text('{"words": "a good"}\n')
    with pytest.raises(UserError, match=r"new.jsonl, line 1: column 'words': expected a list of words"):
        predict(run.run_dir, tmp_path / "new.jsonl", tmp_path / "out.jsonl", force=True)


def test_words_without_tokens_are_tagged_o(tagged: Path, tmp_path: Path) -> None:
    run = train(TextConfig(data=(str(tagged),), label_type="tokens", epochs=6, **SMALL), tmp_path / "run")
    trained = TextModel.load(run.run_dir)
    with_blank, without = trained.scores({"words": [["a", " ", "good", "film"], ["a", "good", "film"]]})
    np.testing.assert_allclose(with_blank[[0, 2, 3]], without, atol=1e-5)
    assert run.metrics["labels"][int(with_blank[1].argmax())] == "O"


@pytest.fixture
def scifact(tmp_path: Path) -> Path:
    data_dir = tmp_path / "scifact"
    data_dir.mkdir()
    texts = rows(60)
    corpus = [{"doc_id": i, "title": f"study{i}", "abstract": [text]} for i, (text, _) in enumerate(texts)]
    (data_dir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    for name, numbers in (("train", range(40)), ("dev", range(40, 60))):
        claims = [{"id": i, "claim": f"study{i} {texts[i][0]}", "cited_doc_ids": [i]} for i in numbers]
        (data_dir / f"claims_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in claims))
    return data_dir


def test_ranking(scifact: Path, tmp_path: Path) -> None:
    run = train(TextConfig(task="scifact", data=(str(scifact),), epochs=1, **SMALL), tmp_path / "run")
    assert set(run.metrics["metrics"]["test"]) >= {"mrr", "map", "ndcg", "r@1", "r@20"}
    check_evaluation(run)
    predictions = pq.read_table(run.run_dir / "predictions.parquet").to_pydict()
    candidates: dict[str, list[tuple[float, int]]] = {}
    for i, split in enumerate(predictions["split"]):
        if split == "test":
            score = predictions["scores"][i][1] - predictions["scores"][i][0]
            candidates.setdefault(predictions["query"][i], []).append((score, predictions["label"][i]))
    ranks = [
        [label for _, label in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))].index(1) + 1
        for pairs in candidates.values()
    ]
    assert run.metrics["metrics"]["test"]["mrr"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert run.metrics["baselines"]["test"]["BM25"]["mrr"] == 1.0, "each claim has the words of its document"
    assert "| test | BM25 | 1.0000 |" in (run.run_dir / "README.md").read_text()
    metadata = ModelCard.load(run.run_dir / "README.md").data.to_dict()
    assert "mrr" in metadata["metrics"]
    assert not {"queries", "queries_without_hit"} & set(metadata["metrics"]), "numbers of queries are not metrics"
    assert (
        "`headwise predict PATH QUERIES --documents DOCUMENTS --out RANKED`" in (run.run_dir / "README.md").read_text()
    )
    new = write(tmp_path / "new.csv", ("claim", "document"), [("good film", "a film that is good")])
    assert predict(run.run_dir, new, tmp_path / "out.jsonl") == 0
    check_probabilities(read_lines(tmp_path / "out.jsonl")[0], ["other", "relevant"])
    with pytest.raises(UserError, match=r"new.csv: a file; a ranking needs a directory with .*score\)$"):
        evaluate(run.run_dir, new)  # which has no --queries


@pytest.mark.parametrize(("low", "high"), [(20, 90), (1990, 2010), (0.001, 0.005)])
def test_ratings_of_any_size_are_learned(low: float, high: float, tmp_path: Path) -> None:
    lines = [(text, str(high if label == "positive" else low)) for text, label in rows(200)]
    data = write(tmp_path / "ratings.csv", ("text", "rating"), lines)
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16}
    config = TextConfig(data=(str(data),), label_type="regression", epochs=20, **sizes)
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["metrics"]["test"]["rmse"] < 0.8 * metrics["baselines"]["test"]["mean"]["rmse"]
    assert any("the output layer starts at the ratings' mean" in note for note in metrics["notes"])


def test_a_new_head_starts_at_the_ratings_and_a_trained_one_does_not(bert: Path, tmp_path: Path) -> None:
    lines = [(text, str(90 if label == "positive" else 20)) for text, label in rows(40)]
    data = write(tmp_path / "ratings.csv", ("text", "rating"), lines)
    options: dict[str, Any] = {"data": (str(data),), "label_type": "regression", "epochs": 1, "learning_rate": 1e-9}
    first = train(TextConfig(model=str(bert), **options), tmp_path / "first")
    scores = np.array(TextModel.load(first.run_dir).scores({"text": [text for text, _ in rows(40)]}))
    assert abs(scores.mean() - 55) < 35
    again = train(TextConfig(model=str(first.run_dir), **options), tmp_path / "again")
    assert not any("output layer" in note for note in again.metrics["notes"])
    stars = write(
        tmp_path / "stars.csv", ("text", "rating"), [(text, str(1 + i % 5)) for i, (text, _) in enumerate(lines)]
    )
    usual = train(TextConfig(model=str(bert), **options | {"data": (str(stars),)}), tmp_path / "stars")
    assert not any("output layer" in note for note in usual.metrics["notes"])


def test_queries_of_the_training_data_are_counted(tmp_path: Path) -> None:
    for name in ("known", "new"):
        texts = [text for text, _ in rows(30, seed=3)]
        (tmp_path / name).mkdir()
        write(
            tmp_path / name / "queries.csv", ("id", "text"), [(str(i), f"{name}{i} {x}") for i, x in enumerate(texts)]
        )
        write(tmp_path / name / "documents.csv", ("id", "text"), [(str(i), f"{name}{i} film") for i in range(30)])
        write(tmp_path / name / "relevance.csv", ("query_id", "document_id"), [(str(i), str(i)) for i in range(30)])
    config = TextConfig(data=(str(tmp_path / "known"),), label_type="ranking", epochs=1, **SMALL)
    run = train(config, tmp_path / "run").run_dir
    note = "the model was trained on 24 of these 30 queries, so its metrics are too high"
    assert evaluate(run, tmp_path / "known")["baseline_notes"] == [note]
    assert evaluate(run, tmp_path / "new")["baseline_notes"] == []
    with pytest.raises(UserError, match=r"expects two texts per row: set --text and --pair, or --documents to rank"):
        predict(run, tmp_path / "known" / "queries.csv", tmp_path / "out.csv")
    (tmp_path / "known" / "queries.csv").unlink()
    assert evaluate(run, tmp_path / "new")["metrics"]["queries"] == 30, "the training data may be missing"


def test_documents_are_ranked_for_the_queries_of_a_file(scifact: Path, tmp_path: Path) -> None:
    """The ranks are those of the probabilities that the model gives the pairs of each query and its documents."""
    run = train(TextConfig(task="scifact", data=(str(scifact),), epochs=1, **SMALL), tmp_path / "run").run_dir
    articles = [(f"a{i}", f"study{i}", text) for i, (text, _) in enumerate(rows(30, seed=4))]
    documents = write(tmp_path / "articles.csv", ("id", "title", "text"), articles)
    queries = write(
        tmp_path / "queries.csv", ("question", "year"), [("study3 film", "1"), ("", "2"), ("good study7", "3")]
    )
    for part_rows in (None, 15):
        out = tmp_path / "ranked.jsonl"
        assert predict(run, queries, out, documents=[documents], force=True, part_rows=part_rows) == 1
        ranked = read_lines(tmp_path / "ranked.jsonl")
        assert [row["query"] for row in ranked] == ["1"] * 20 + ["3"] * 20
        assert [row["rank"] for row in ranked] == [*range(1, 21)] * 2
        assert {row["query_text"] for row in ranked} == {"study3 film", "good study7"}
        texts = {name: f"{title} {text}" for name, title, text in articles}
        assert all(row["document_text"] == texts[row["document"]] for row in ranked)
        assert "a3" in {row["document"] for row in ranked[:20]}, "BM25 selects the document with the query's words"
        assert "a7" in {row["document"] for row in ranked[20:]}
    pairs = [(row["query_text"], row["document_text"]) for row in ranked]
    predict(run, write(tmp_path / "pairs.csv", ("query", "document"), pairs), tmp_path / "scored.jsonl")
    expected = [row["probability_relevant"] for row in read_lines(tmp_path / "scored.jsonl")]
    probabilities = [row["probability_relevant"] for row in ranked]
    assert probabilities == pytest.approx(expected, abs=1e-5)
    for part in (probabilities[:20], probabilities[20:]):
        assert part == sorted(part, reverse=True)
    predict(run, queries, tmp_path / "ranked.parquet", documents=[documents], text="question")
    assert pq.read_table(tmp_path / "ranked.parquet")["document"].to_pylist() == [row["document"] for row in ranked]


def test_rankings_with_wrong_files_are_refused(scifact: Path, reviews: Path, tmp_path: Path) -> None:
    run = train(TextConfig(task="scifact", data=(str(scifact),), epochs=1, **SMALL), tmp_path / "run").run_dir
    documents = write(tmp_path / "articles.csv", ("id", "text"), [("a", "one film"), ("b", "two films")])
    queries = write(tmp_path / "queries.csv", ("id", "text"), [("x", "film"), ("y", "films")])

    def check(message: str, *, queries: Path = queries, documents: Path = documents, **options: Any) -> None:
        with pytest.raises(UserError, match=message):
            predict(run, queries, tmp_path / "out.csv", documents=[documents], **options)
        assert not (tmp_path / "out.csv").exists()

    repeated = write(tmp_path / "repeated.csv", ("id", "text"), [("x", "film"), ("x", "films")])
    partial = write(tmp_path / "partial.csv", ("id", "text"), [("x", "film"), ("", "films")])
    check("repeated.csv: query 'x' is repeated", queries=repeated)
    check("partial.csv: 1 of 2 queries have no id; give all of them an id, or none", queries=partial)
    check("repeated.csv, line 3: document 'x' is repeated", documents=repeated)
    check("queries.csv: expected a column words; the columns are id, text", text="words")
    check("--pair cannot be combined with --documents", pair="text")
    check("no query has a text", queries=write(tmp_path / "blank.csv", ("id", "text"), [("x", " ")]))
    classifier = train(TextConfig(data=(str(reviews),), epochs=1, **SMALL), tmp_path / "classifier").run_dir
    with pytest.raises(UserError, match=r"--documents does not apply to the run in .*, whose labels are class"):
        predict(classifier, queries, tmp_path / "out.csv", documents=[documents])


def test_evaluate_another_file(reviews: Path, tmp_path: Path) -> None:
    run = train(TextConfig(data=(str(reviews),), epochs=1, **SMALL), tmp_path / "run")
    lines = [*rows(30, seed=5), ("a good film", "negative")]
    other = write(tmp_path / "other.csv", ("body", "mark"), lines)
    evaluation = evaluate(run.run_dir, other, text="body", label="mark")
    predict(run.run_dir, other, tmp_path / "out.jsonl", text="body")
    predicted = [row["predicted"] for row in read_lines(tmp_path / "out.jsonl")]
    correct = [label == prediction for (_, label), prediction in zip(lines, predicted, strict=True)]
    assert evaluation["rows"] == 31
    assert evaluation["metrics"]["accuracy"] == pytest.approx(np.mean(correct))
    new = write(tmp_path / "new.csv", ("text", "label"), [("a good film", "mixed")])
    with pytest.raises(UserError, match=r"line 2: label 'mixed' is unknown; expected negative, positive"):
        evaluate(run.run_dir, new)
    pairs = write(tmp_path / "pairs.csv", ("premise", "hypothesis"), [("a", "b")])
    with pytest.raises(UserError, match="this model expects one text per row"):
        predict(run.run_dir, pairs, tmp_path / "out.csv")


def test_changed_data_is_refused(tmp_path: Path) -> None:
    lines = rows(80)
    data = write(tmp_path / "reviews.csv", ("text", "label"), lines)
    run = train(TextConfig(data=(str(data),), epochs=1, **SMALL), tmp_path / "run")
    check_evaluation(run)
    other_texts = [(f"{text} again", label) for text, label in lines]
    for changed in (rows(60), other_texts):
        write(data, ("text", "label"), list(changed))
        with pytest.raises(UserError, match="the data has changed since training"):
            evaluate(run.run_dir)
        assert evaluate(run.run_dir, data)["rows"] == len(changed)
    write(data, ("text", "label"), lines)
    check_evaluation(run)


def test_output_formats(reviews: Path, tmp_path: Path) -> None:
    run = train(TextConfig(data=(str(reviews),), epochs=1, **SMALL), tmp_path / "run")
    texts = [text for text, _ in rows(1200)]
    late = pa.table({"text": [None] * 1000 + texts[:200], "note": pa.array([None] * 1100 + ["x"] * 100, pa.string())})
    pq.write_table(late, tmp_path / "late.parquet")
    assert predict(run.run_dir, tmp_path / "late.parquet", tmp_path / "out.parquet") == 1000
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.select(["text", "note"]).equals(late)
    assert table["predicted"].null_count == 1000
    ragged = [json.dumps({"text": text} | ({"note": "x"} if i > 1000 else {})) for i, text in enumerate(texts)]
    (tmp_path / "ragged.jsonl").write_text("\n".join([*ragged, '{"id": 3}']) + "\n")
    assert predict(run.run_dir, tmp_path / "ragged.jsonl", tmp_path / "out.jsonl") == 1
    assert [row.get("text") for row in read_lines(tmp_path / "out.jsonl")] == [*texts, None]
    write(tmp_path / "tabs.csv", ("text", "predicted"), [("a\tgood film", "x")])
    for name, out, message in (
        ("ragged.jsonl", "o.csv", "column 'note' is missing in the first rows; use JSON Lines instead"),
        ("ragged.jsonl", "o.parquet", "a column is missing in the first rows"),
        ("tabs.csv", "o.csv", "already has a column 'predicted'; rename it"),
    ):
        with pytest.raises(UserError, match=message):
            predict(run.run_dir, tmp_path / name, tmp_path / out)
        assert not (tmp_path / out).exists()
    write(tmp_path / "tabs.csv", ("text",), [("a\tgood film",)])
    with pytest.raises(UserError, match="TSV cannot store tabs or line breaks"):
        predict(run.run_dir, tmp_path / "tabs.csv", tmp_path / "o.tsv")


def test_max_length_must_exceed_the_special_tokens(bert: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--max-length 2 leaves no room for text: there are 2 special tokens"):
        train(TextConfig(data=(str(reviews),), model=str(bert), max_length=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()
