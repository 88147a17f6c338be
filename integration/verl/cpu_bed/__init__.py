"""Runs the real verl on a machine without a GPU, for tests. Checked against verl 0.9.1.

`run.run_trainer` runs the whole trainer in a process of its own; `workers.Workers` the real training
worker alone, on one or two ranks. verl imports `cpu_bed.plugin` in every process.
"""
