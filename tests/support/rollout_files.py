"""Small rollout files for the tests."""

import json

from samplemask.audit import Options, audit_files


def row(task, rollout, reward=None, *, attempt=None, agent=None, **more):
    """One row; what is None is left out."""
    values = {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "_ng_attempt_index": attempt,
        "reward": reward,
        "agent_ref": None if agent is None else {"name": agent},
    }
    return {name: value for name, value in values.items() if value is not None} | more


def failure(task, rollout, kind="judge_failed", **more):
    return row(task, rollout, _ng_failure_class=kind, **more)


def write(folder, rows, name="rollouts.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def audited(folder, rows, *, failures=None, inputs=None, **options):
    """Audit one run that is written to `folder`; returns the JSON document."""
    path = write(folder, rows)
    if failures is not None:
        write(folder, failures, "rollouts_failures.jsonl")
    if inputs is not None:
        write(folder, inputs, "rollouts_materialized_inputs.jsonl")
    return audit_files([path], options=Options(**options)).to_json()


def counts(document):
    """The dispositions that are not 0."""
    return {name: count for name, count in document["dispositions"].items() if count}
