"""The public API of `import headwise`, and the registration of its models with transformers."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import headwise
from headwise import _auto_classes
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification, build_tokenizer
from tests.fresh_python import run_fresh_python
from tests.short_form import keep_short


def test_dir_lists_the_public_names() -> None:
    assert set(dir(headwise)) == set(headwise.__all__)
    assert len(headwise.__all__) == len(set(headwise.__all__))
    assert all(getattr(headwise, name) is not None for name in headwise.__all__)


def test_no_other_public_names_are_defined() -> None:
    names = {name for name, x in vars(headwise).items() if not name.startswith("_") and not isinstance(x, ModuleType)}
    assert names <= set(headwise.__all__)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'headwise' has no attribute 'guide'"):
        headwise.guide  # noqa: B018


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["a fine film", "a bad film"])
    tokenizer.save_pretrained(path)
    config = HeadwiseConfig(vocab_size=len(tokenizer), word_dim=8, heads=2, head_dim=4, num_labels=2)
    HeadwiseForSequenceClassification(config).save_pretrained(path)
    return path


FROM_TRANSFORMERS = "from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification"
IMPORTS = {
    "headwise-first": f"import headwise; {FROM_TRANSFORMERS}",
    "transformers-first": f"{FROM_TRANSFORMERS}; import headwise",
}


@pytest.mark.parametrize("order", keep_short(IMPORTS, "transformers-first"))  # pipelines import headwise first
def test_auto_classes_load_our_models(order: str, saved_model: Path) -> None:
    run_fresh_python(
        f"""
        import pickle, sys
        {IMPORTS[order]}
        configs = {{name: CONFIG_MAPPING[name] for name in ("headwise", "headwise-recommender", "headwise-translator")}}
        pickled = pickle.dumps(CONFIG_MAPPING)
        assert "headwise.models" not in sys.modules, "importing transformers does not import headwise.models"
        assert pickle.loads(pickled)["headwise"]().model_type == "headwise"
        model = AutoModelForSequenceClassification.from_pretrained({str(saved_model)!r})
        assert type(model).__name__ == "HeadwiseForSequenceClassification"
        for name, config in configs.items():
            assert config().model_type == name
            assert type(config()).__module__.startswith("headwise.models")
        """
    )


def test_headwise_is_imported_first_and_again(saved_model: Path) -> None:
    """transformers and our models are imported on first use only. Importing headwise twice is harmless."""
    run_fresh_python(
        f"""
        import sys
        import headwise
        assert headwise.attend.__module__ == "headwise.attention.attend"
        assert not {{"transformers", "headwise.guides", "headwise.models"}} & sys.modules.keys()
        assert headwise.guides.First().name == "First"
        assert "headwise.models" not in sys.modules
        modules = {{name: sys.modules.pop(name) for name in ("headwise", "headwise._auto_classes")}}
        import headwise
        assert headwise is not modules["headwise"]
        from transformers import pipeline
        assert "headwise.models" not in sys.modules
        pipe = pipeline("text-classification", model={str(saved_model)!r})
        assert pipe("a fine film")[0]["label"] in ("LABEL_0", "LABEL_1")
        assert headwise.models.HeadwiseConfig().model_type == "headwise"
        """
    )


def test_a_failing_import_of_models_is_reported_on_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headwise.models", None)  # import_module now raises ImportError
    with pytest.raises(
        ImportError, match=r"the model type 'headwise' needs headwise\.models, which could not be imported"
    ):
        _auto_classes.EncoderConfigPlaceholder()


def test_a_failing_registration_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_auto_classes, "PLACEHOLDERS", (None,))
    _auto_classes.register_auto_classes()
    assert "headwise's model types were not registered" in caplog.text
