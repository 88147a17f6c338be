"""What failed rollouts do to a small policy, and what each choice in samplemask changes.

`make experiment` runs it and writes docs/experiment.md. The advantages come from the real verl.
"""
