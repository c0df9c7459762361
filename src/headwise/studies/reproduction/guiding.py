"""Attention guiding: tables 1 to 4, figures 3 and 6; figures 4 and 5 are pictures of heads."""

from headwise.studies.reproduction.study_spec import Axis, Overrides, Pictured, StudySpec

#: The names are those of the paper's footnotes.
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

PAIRED: dict[str, Overrides] = MODELS | {
    f"{name}+AG": {**settings, "guides": GUIDES["AG"]} for name, settings in MODELS.items()
}
OWN_MODELS = {f"{name}+AG": name for name in MODELS}
TASKS: dict[str, Overrides] = {"multinli": {}, "mednli": {}, "cross-genre-ir": {}}

COMPARED = {
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
    "The paper chose α and β of {0.1, 0.01, 0.001, 0.0001} by grid search and does not say which; here weights are "
    "automatic. headwise sweep chooses them on dev."
)
RUNS = "The paper does not say how many runs its figures are of."
MODEL = (
    "--model names another Hugging Face encoder. The classifier is the model's own, as in the paper's released code; "
    "its equation 7 has W · ReLU(h) of the first token: --classifier first-token."
)


def of_share(guides: tuple[str, ...], share: int) -> Overrides:
    """All training rows, or a share of them."""
    return {"guides": guides} if share == 100 else {"guides": guides, "rows": share / 100}


STUDIES: dict[str, StudySpec] = {
    "guiding-table1": StudySpec(
        asks="does guiding help seven pre-trained models?",
        tasks=TASKS,
        methods=PAIRED,
        baseline="BERT",
        controls=OWN_MODELS,
        notes=(WEIGHTS, RUNS),
    ),
    "guiding-table2": StudySpec(
        asks="which guide helps BERT most?",
        tasks=dict.fromkeys(TASKS, BERT),
        methods={"unguided": {}, "AG": {"guides": GUIDES["AG"]}}
        | {name: {"guides": (guide,)} for name, guide in COMPARED.items()},
        baseline="unguided",
        missing={
            "[Dependency]": "headwise train parses no sentences; the library's hw.guides.Dependency does the rest"
        },
        notes=(WEIGHTS, RUNS, MODEL),
    ),
    "guiding-table3": StudySpec(
        asks="which of the two guides helps?",
        tasks={"multinli": MODELS["RoBERTa"], "mednli": MODELS["BlueBERT"], "cross-genre-ir": MODELS["BioBERT"]},
        methods={"unguided": {}, **{name: {"guides": guides} for name, guides in GUIDES.items()}},
        baseline="unguided",
        notes=(WEIGHTS, RUNS, MODEL),
    ),
    "guiding-table4": StudySpec(
        asks="what does guiding cost?",
        tasks={name: {"epochs": 1} for name in TASKS},
        methods=PAIRED,
        baseline="BERT",
        controls=OWN_MODELS,
        seeds=3,
        notes=("Seconds depend on the GPU; the paper's is a GeForce RTX 3090. Run one at a time (--jobs 1).",),
    ),
    "guiding-figure3": StudySpec(
        asks="which layers should be guided?",
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
        axis=Axis(
            "layer",
            {"unguided": ("unguided", (LAYERS[0], LAYERS[-1]))}
            | {f"{name} at layer {layer}": (name, (layer,)) for name in GUIDES for layer in LAYERS},
        ),
        notes=(WEIGHTS, RUNS, MODEL, "The paper's layers are taken as counted from 1."),
    ),
    "guiding-figure6": StudySpec(
        asks="does guiding help with few training rows?",
        tasks={"mednli": BERT},
        methods={
            f"{name}, {share}%": of_share(guides, share)
            for share in SHARES
            for name, guides in {"unguided": (), **GUIDES}.items()
        },
        baseline="unguided, 100%",
        controls={f"{name}, {share}%": f"unguided, {share}%" for share in SHARES for name in GUIDES},
        axis=Axis(
            "training rows, %",
            {f"{name}, {share}%": (name, (share,)) for name in ("unguided", *GUIDES) for share in SHARES},
        ),
        notes=(WEIGHTS, RUNS, MODEL),
    ),
}

PICTURES: dict[str, Pictured] = {
    "guiding-figure4": Pictured(
        "the mean map of a text: unguided, MDG, PDG, both", 'headwise inspect RUN RUN RUN RUN --text "…" --out FOLDER'
    ),
    "guiding-figure5": Pictured(
        "all heads' maps in two principal components", 'headwise inspect RUN RUN RUN RUN --text "…" --out FOLDER'
    ),
}
