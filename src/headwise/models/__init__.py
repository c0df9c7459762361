"""Hugging Face models with headwise attention, their tokenizers and word vectors.

Importing this package registers them with the Auto classes of transformers.
"""

from headwise._extras import require

require("hf", __name__)

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from headwise.models.classification import HeadwiseForSequenceClassification, HeadwiseForTokenClassification
from headwise.models.configuration import HeadwiseConfig
from headwise.models.documents import encode_document, pad_documents
from headwise.models.encoder import HeadwiseModel
from headwise.models.first_token import FirstToken
from headwise.models.initialization import initialize_by_name
from headwise.models.pooling import AdditivePooling
from headwise.models.recommender import HeadwiseForRecommendation
from headwise.models.recommender_configuration import RecommenderConfig
from headwise.models.subwords import build_subwords
from headwise.models.translator import HeadwiseForTranslation
from headwise.models.translator_configuration import HeadwiseTranslatorConfig
from headwise.models.vectors import Coverage, read_vectors
from headwise.models.words import build_tokenizer, count_words

AutoConfig.register("headwise", HeadwiseConfig)
AutoModel.register(HeadwiseConfig, HeadwiseModel)
AutoModelForSequenceClassification.register(HeadwiseConfig, HeadwiseForSequenceClassification)
AutoModelForTokenClassification.register(HeadwiseConfig, HeadwiseForTokenClassification)
AutoConfig.register("headwise-recommender", RecommenderConfig)
AutoModel.register(RecommenderConfig, HeadwiseForRecommendation)
AutoConfig.register("headwise-translator", HeadwiseTranslatorConfig)
AutoModelForSeq2SeqLM.register(HeadwiseTranslatorConfig, HeadwiseForTranslation)

__all__ = [
    "AdditivePooling",
    "Coverage",
    "FirstToken",
    "HeadwiseConfig",
    "HeadwiseForRecommendation",
    "HeadwiseForSequenceClassification",
    "HeadwiseForTokenClassification",
    "HeadwiseForTranslation",
    "HeadwiseModel",
    "HeadwiseTranslatorConfig",
    "RecommenderConfig",
    "build_subwords",
    "build_tokenizer",
    "count_words",
    "encode_document",
    "initialize_by_name",
    "pad_documents",
    "read_vectors",
]
