"""Studies of the attention guiding paper: tables 1 to 4, figures 3 and 6. Figures 4 and 5 show heads."""

from headwise.studies.reproduction import InspectionFigure, LineChart, Overrides, StudySpec

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

MODELS_WITH_AND_WITHOUT_AG: dict[str, Overrides] = MODELS | {
    f"{name}+AG": {**overrides, "guides": GUIDES["AG"]} for name, overrides in MODELS.items()
}
UNGUIDED_CONTROLS = {f"{name}+AG": name for name in MODELS}
TASKS: dict[str, Overrides] = {"multinli": {}, "mednli": {}, "cross-genre-ir": {}}

OTHER_GUIDES = {
    "[First]": "first",
    "[Next]": "next",
    "[Prev]": "previous",
    "[Period]": "period",
    "[Delim]": "delimiter",
    "[PMI]": "pmi",
    "[WordSim]": "word-similarity",
}
LAYERS = range(1, 13)
SHARES = (20, 40, 60, 80, 100)

WEIGHTS = (
    "The paper chose α and β from {0.1, 0.01, 0.001, 0.0001} by grid search and does not state the choice. This study "
    "uses automatic weights; headwise sweep selects weights on dev."
)
RUNS = "The paper does not state the number of runs."
MODEL = (
    "--model selects another Hugging Face encoder. The classifier is the model's own, as in the paper's released code; "
    "equation 7 of the paper, W · ReLU(h) of the first token, is --classifier first-token."
)


def guides_with_share(guides: tuple[str, ...], share: int) -> Overrides:
    """Return guides with a share of the training rows, in percent."""
    return {"guides": guides} if share == 100 else {"guides": guides, "rows": share / 100}


STUDIES: dict[str, StudySpec] = {
    "guiding-table1": StudySpec(
        question="does guiding improve seven pre-trained models?",
        tasks=TASKS,
        methods=MODELS_WITH_AND_WITHOUT_AG,
        baseline="BERT",
        controls=UNGUIDED_CONTROLS,
        notes=(WEIGHTS, RUNS),
    ),
    "guiding-table2": StudySpec(
        question="which guide improves BERT most?",
        tasks=dict.fromkeys(TASKS, BERT),
        methods={"unguided": {}, "AG": {"guides": GUIDES["AG"]}}
        | {name: {"guides": (guide,)} for name, guide in OTHER_GUIDES.items()},
        baseline="unguided",
        unavailable_methods={
            "[Dependency]": "headwise train does not parse sentences; use headwise.guides.Dependency from Python"
        },
        notes=(WEIGHTS, RUNS, MODEL),
    ),
    "guiding-table3": StudySpec(
        question="which of the two guides is effective?",
        tasks={"multinli": MODELS["RoBERTa"], "mednli": MODELS["BlueBERT"], "cross-genre-ir": MODELS["BioBERT"]},
        methods={"unguided": {}, **{name: {"guides": guides} for name, guides in GUIDES.items()}},
        baseline="unguided",
        notes=(WEIGHTS, RUNS, MODEL),
    ),
    "guiding-table4": StudySpec(
        question="how much training time does guiding cost?",
        tasks={name: {"epochs": 1} for name in TASKS},
        methods=MODELS_WITH_AND_WITHOUT_AG,
        baseline="BERT",
        controls=UNGUIDED_CONTROLS,
        seeds=3,
        notes=("Training time depends on the GPU; the paper uses a GeForce RTX 3090. Use --jobs 1.",),
    ),
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
        chart=LineChart(
            "layer",
            {"unguided": ("unguided", (LAYERS[0], LAYERS[-1]))}
            | {f"{name} at layer {layer}": (name, (layer,)) for name in GUIDES for layer in LAYERS},
        ),
        notes=(WEIGHTS, RUNS, MODEL, "The paper's layers are assumed to be numbered from 1."),
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
        controls={f"{name}, {share}%": f"unguided, {share}%" for share in SHARES for name in GUIDES},
        chart=LineChart(
            "training examples, %",
            {f"{name}, {share}%": (name, (share,)) for name in ("unguided", *GUIDES) for share in SHARES},
        ),
        notes=(WEIGHTS, RUNS, MODEL),
    ),
}

INSPECT_FOUR_RUNS = 'headwise inspect RUN RUN RUN RUN --text "…" --out FOLDER'

INSPECTION_FIGURES: dict[str, InspectionFigure] = {
    "guiding-figure4": InspectionFigure("mean attention map of a text: unguided, MDG, PDG, both", INSPECT_FOUR_RUNS),
    "guiding-figure5": InspectionFigure("attention maps of all heads in two principal components", INSPECT_FOUR_RUNS),
}
