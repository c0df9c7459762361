"""The task of translation."""

from headwise.tasks.task import Task

TRANSLATION = Task(
    name="translation",
    label_type="translation",
    about="translate sentences from one language to another",
    paper="relative position representations, Table 1 (WMT 2014 English-German and English-French)",
    source="line-aligned files such as train.en and train.de; tables with a column for each language; or hub:NAME",
)
