"""The papers' own studies, again: declared as data, run by the engine, told beside what the papers report."""
