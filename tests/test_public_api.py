"""The public API of `import headwise`, and the registration of its models with transformers."""

from pathlib import Path
from types import ModuleType

import pytest

import headwise
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


def test_transformers_is_imported_on_first_use_only() -> None:
    run_fresh_python(
        """
        import sys
        import headwise
        assert headwise.attend.__module__ == "headwise.attention.attend"
        assert not {"transformers", "headwise.guides", "headwise.models"} & sys.modules.keys()
        assert headwise.guides.First().name == "First"
        assert "headwise.models" not in sys.modules
        assert headwise.models.HeadwiseConfig().model_type == "headwise"
        """
    )


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
        import sys
        {IMPORTS[order]}
        configs = {{name: CONFIG_MAPPING[name] for name in ("headwise", "headwise-recommender", "headwise-translator")}}
        assert "headwise.models" not in sys.modules, "importing transformers does not import headwise.models"
        model = AutoModelForSequenceClassification.from_pretrained({str(saved_model)!r})
        assert type(model).__name__ == "HeadwiseForSequenceClassification"
        for name, config in configs.items():
            assert config().model_type == name
            assert type(config()).__module__.startswith("headwise.models")
        """
    )


def test_pipelines_and_pickled_mappings_find_our_models(saved_model: Path) -> None:
    run_fresh_python(
        f"""
        import pickle
        import headwise
        from transformers import CONFIG_MAPPING, pipeline
        assert pickle.loads(pickle.dumps(CONFIG_MAPPING))["headwise"]().model_type == "headwise"
        pipe = pipeline("text-classification", model={str(saved_model)!r})
        assert pipe("a fine film")[0]["label"] in ("LABEL_0", "LABEL_1")
        """
    )


def test_a_failing_import_of_models_is_reported_on_use() -> None:
    run_fresh_python(
        """
        import sys
        import headwise
        sys.modules["headwise.models"] = None  # import_module now raises ImportError
        from transformers import AutoConfig, BertConfig
        assert AutoConfig.for_model("bert").model_type == "bert"
        try:
            AutoConfig.for_model("headwise")
        except ImportError as error:
            assert "the model type 'headwise' needs headwise.models, which could not be imported" in str(error)
        else:
            raise AssertionError("no error")
        """
    )


def test_a_failing_registration_does_not_break_transformers() -> None:
    report = run_fresh_python(
        """
        import headwise
        from headwise import _auto_classes
        _auto_classes.PLACEHOLDERS = (None,)
        from transformers import AutoConfig
        assert AutoConfig.for_model("bert").model_type == "bert"
        """
    )
    assert "headwise's model types were not registered" in report


def test_importing_headwise_again_is_harmless() -> None:
    run_fresh_python(
        """
        import sys
        import headwise
        first = headwise
        del sys.modules["headwise"], sys.modules["headwise._auto_classes"]
        import headwise
        from transformers import AutoConfig
        assert AutoConfig.for_model("headwise").model_type == "headwise"
        """
    )
