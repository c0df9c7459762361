"""The core of all training pipelines: the driver, the Trainer, the run directory, metrics and model cards."""
