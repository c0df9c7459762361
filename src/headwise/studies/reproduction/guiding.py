"""Studies of the attention guiding paper: tables 1 to 4, figures 3 to 6."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headwise.studies.reproduction import LineChart, Overrides, StudySpec
from headwise.studies.reproduction.head_figures import draw_mean_attention, draw_principal_components
from headwise.studies.reproduction.paper_comparison import GUIDED, build_time_tables
from headwise.studies.search_space import GUIDE_WEIGHTS

#: Model names as in the paper's footnotes.
MODELS: dict[str, Overrides] = {
    "BERT": {"model": "bert-base-uncased"},
    "ALBERT": {"model": "albert-base-v2", "batch_size": 56},
    "RoBERTa": {"model": "roberta-base"},
    "BioBERT": {"model": "dmis-lab/biobert-v1.1"},
    "ClinicalBERT": {"model": "emilyalsentzer/Bio_ClinicalBERT"},
    "BlueBERT": {"model": "ttumyche/bluebert"},
    "SciBERT": {"model": "nfliu/scibert_basevocab_uncased"},
}
GUIDES = {"MDG": ("mdg",), "PDG": ("pdg",), "AG": ("mdg", "pdg")}
BERT = MODELS["BERT"]

TASKS: dict[str, Overrides] = {"multinli": {}, "mednli": {}, "cross-genre-ir": {}}

OTHER_GUIDES = {
    "[First]": "first",
    "[Next]": "next",
    "[Prev]": "previous",
    "[Period]": "period",
    "[Delim]": "delimiter",
    "[PMI]": "pmi",
    "[Dependency]": "dependency",
    "[WordSim]": "word-similarity",
}
LAYERS = range(1, 13)
SHARES = (20, 40, 60, 80, 100)

#: The loss of equations 11 and 12, and the classifier of equation 7.
OPTIONS: Overrides = {"guide_reduction": "paper", "classifier": "first-token"}

#: The weights that are tried: those of the paper and smaller ones. In the paper's loss, MDG is a sum over heads and PDG
#: a sum over pairs of heads. So the smallest weight of PDG is a hundredth of that of MDG, for about a hundred heads.
WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "mdg": (*GUIDE_WEIGHTS, 1e-5),
    "pdg": (*GUIDE_WEIGHTS, 1e-5, 1e-6, 1e-7),
    **dict.fromkeys(OTHER_GUIDES.values(), GUIDE_WEIGHTS),
}
CHOICE = (
    "The paper chose α and β from {0.1, 0.01, 0.001, 0.0001} by grid search and does not state the choice. This study "
    "also tries weights below the paper's grid, 1e-5 for MDG and 1e-5 to 1e-7 for PDG, which sums over pairs of heads. "
    "It selects weights that --guides does not set on dev, with a seed that it does not use afterwards."
)
LOSS = (
    "The loss is that of the paper's equations (--guide-reduction paper); --guide-reduction released is that of the "
    "authors' code. The classifier is W · ReLU(h) of the first token, equation 7; --classifier own is the model's, as "
    "in the authors' code."
)
RUNS = "The paper does not state the number of runs."


def guides_with_share(guides: tuple[str, ...], share: int) -> Overrides:
    """Return guides with a share of the training rows, in percent."""
    return {"guides": guides} if share == 100 else {"guides": guides, "rows": share / 100}


def compare_models(models: Mapping[str, Overrides]) -> StudySpec:
    """Return Table 1 for these models."""
    return StudySpec(
        question="does guiding improve pre-trained models?",
        tasks=TASKS,
        methods={**models, **{f"{name}{GUIDED}": {**x, "guides": GUIDES["AG"]} for name, x in models.items()}},
        baseline=next(iter(models)),
        options=OPTIONS,
        guide_weights=WEIGHTS,
        with_models=compare_models,
        controls={f"{name}{GUIDED}": name for name in models},
        notes=(CHOICE, LOSS, RUNS),
    )


def compare_training_times(models: Mapping[str, Overrides]) -> StudySpec:
    """Return Table 4 for these models. The time does not depend on the weights, so they are not searched."""
    guides = tuple(f"{guide}=0.001" for guide in GUIDES["AG"])
    return replace(
        compare_models(models),
        question="how much training time does guiding cost?",
        tasks={name: {"epochs": 1} for name in TASKS},
        methods={**models, **{f"{name}{GUIDED}": {**x, "guides": guides} for name, x in models.items()}},
        with_models=compare_training_times,
        seeds=3,
        build_tables=build_time_tables,
        notes=(
            "Seconds are those of training alone, without evaluations on dev and checkpoints. They depend on the GPU; "
            "the paper uses a GeForce RTX 3090. Use --jobs 1.",
        ),
    )


#: One run of BERT without and with guides, whose attention is drawn.
MAPS: dict[str, Any] = {
    "tasks": {"mednli": BERT},
    "methods": {"unguided": {}, **{name: {"guides": guides} for name, guides in GUIDES.items()}},
    "baseline": "unguided",
    "options": OPTIONS,
    "guide_weights": WEIGHTS,
    "seeds": 1,
    "notes": (CHOICE, LOSS),
}

STUDIES: dict[str, StudySpec] = {
    "guiding-table1": compare_models(MODELS),
    "guiding-table2": StudySpec(
        question="which guide improves BERT most?",
        tasks=dict.fromkeys(TASKS, BERT),
        methods={"unguided": {}, "AG": {"guides": GUIDES["AG"]}}
        | {name: {"guides": (guide,)} for name, guide in OTHER_GUIDES.items()},
        baseline="unguided",
        options=OPTIONS,
        guide_weights=WEIGHTS,
        notes=(CHOICE, LOSS, RUNS),
    ),
    "guiding-table3": StudySpec(
        question="which of the two guides is effective?",
        tasks={"multinli": MODELS["RoBERTa"], "mednli": MODELS["BlueBERT"], "cross-genre-ir": MODELS["BioBERT"]},
        methods={"unguided": {}, **{name: {"guides": guides} for name, guides in GUIDES.items()}},
        baseline="unguided",
        options=OPTIONS,
        guide_weights=WEIGHTS,
        notes=(CHOICE, LOSS, RUNS),
    ),
    "guiding-table4": compare_training_times(MODELS),
    "guiding-figure3": StudySpec(
        question="which layers should be guided?",
        tasks={"mednli": BERT},
        methods={
            "unguided": {},
            **{
                f"{name} at layer {layer}": {"guides": tuple(f"{guide}@{layer - 1}" for guide in guides)}
                for name, guides in GUIDES.items()
                for layer in LAYERS
            },
        },
        baseline="unguided",
        options=OPTIONS,
        guide_weights=WEIGHTS,
        chart=LineChart(
            "layer",
            {"unguided": ("unguided", (LAYERS[0], LAYERS[-1]))}
            | {f"{name} at layer {layer}": (name, (layer,)) for name in GUIDES for layer in LAYERS},
        ),
        notes=(CHOICE, LOSS, RUNS, "The paper's layers are assumed to be numbered from 1."),
    ),
    "guiding-figure6": StudySpec(
        question="does guiding help with few training examples?",
        tasks={"mednli": BERT},
        methods={
            f"{name}, {share}%": guides_with_share(guides, share)
            for share in SHARES
            for name, guides in {"unguided": (), **GUIDES}.items()
        },
        baseline="unguided, 100%",
        options=OPTIONS,
        guide_weights=WEIGHTS,
        controls={f"{name}, {share}%": f"unguided, {share}%" for share in SHARES for name in GUIDES},
        chart=LineChart(
            "training examples, %",
            {f"{name}, {share}%": (name, (share,)) for name in ("unguided", *GUIDES) for share in SHARES},
        ),
        notes=(CHOICE, LOSS, RUNS),
    ),
    "guiding-figure4": StudySpec(
        question="where do guided models attend, on average?", draw=draw_mean_attention, **MAPS
    ),
    "guiding-figure5": StudySpec(question="how different are the heads?", draw=draw_principal_components, **MAPS),
}
