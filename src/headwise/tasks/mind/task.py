"""What is learnt from a click log, and how unless the user says otherwise."""

from headwise.tasks.task import Task, TrainingDefaults

MIND = Task(
    name="mind",
    label_type="clicks",
    about="which of the news shown will a user click, after those clicked before?",
    paper="distance-aware transformer, Table 5: 500k impressions of 1m users, 161k news",
    source="folders train, dev, test, or such as MINDsmall_train, with news.tsv and behaviors.tsv",
    fine_tuning=TrainingDefaults(epochs=3, learning_rate=2e-5, batch_size=64, max_length=30),
    from_scratch=TrainingDefaults(epochs=5, learning_rate=1e-3, batch_size=64, max_length=30),
)
