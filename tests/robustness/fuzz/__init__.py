"""Fuzzing: corrupt and hostile files, model directories, run directories and studies.

`python -m tests.robustness.fuzz` runs it. An input has a number, which determines its kind and its content.
"""
