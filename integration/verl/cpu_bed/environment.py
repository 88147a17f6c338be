"""The environment: a verl reward function that fails a chosen share of the rollouts.

Everything follows from the response's text, so the same rollout always gets the same verdict. Each call
is appended to `CPU_BED_ENVIRONMENT_LOG`, the environment's own account that tests compare metrics with.
"""

import hashlib
import json
import os

KINDS = ("session_lost", "judge_failed")


def compute_score(
    data_source,
    solution_str,
    ground_truth,
    extra_info=None,
    fail_fraction=0.0,
    fail_prompts=(),
    storm_prompts=(),
    storm_fraction=0.0,
    failed_reward=0.0,
    says_so=True,
    **unused,
):
    """Score one response.

    Args:
        fail_fraction: Share of the rollouts that fail, 0 to 1.
        fail_prompts: Prompts (ground truths) whose every rollout fails.
        storm_prompts: Prompts of which another share of the rollouts fails: data in order makes them a step.
        storm_fraction: That share.
        failed_reward: The stand-in reward of a failed rollout.
        says_so: False: an old environment, which returns no verdict at all.
    """
    digest = int(hashlib.sha256(f"{ground_truth}|{solution_str}".encode()).hexdigest(), 16)
    share = storm_fraction if str(ground_truth) in map(str, storm_prompts) else fail_fraction
    failed = (digest // 5) % 1000 < share * 1000 or str(ground_truth) in map(str, fail_prompts)
    kind = KINDS[(digest // 5000) % len(KINDS)] if failed else None
    score = failed_reward if failed else (digest % 5) / 4
    split = (extra_info or {}).get("split", "")
    _write_down(prompt=str(ground_truth), split=split, score=score, failed=failed, kind=kind)
    result = {"score": score, "acc": score}
    if says_so:
        reason = "the bed said so" if failed else None
        result |= {"mask_sample": failed, "failure_kind": kind, "failure_reason": reason}
    return result


def _write_down(**record) -> None:
    if path := os.environ.get("CPU_BED_ENVIRONMENT_LOG"):
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
