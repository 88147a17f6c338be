"""Check what an environment's verify method returns: readable everywhere, and says what it should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from samplemask.errors import ContractError
from samplemask.failure_kinds import is_namespaced, is_registered
from samplemask.testing.conformance import ConformanceError
from samplemask.verdict import FAILURE_CLASS, Verdict, read_verdict


def check_response(response: Mapping[str, Any] | BaseModel | bytes | str) -> Verdict:
    """Read a verify response and refuse one that a trainer could misread.

    Args:
        response: What the verify method returned, or the body that the server sent.

    Returns:
        Its verdict, to assert on.

    Raises:
        ConformanceError: It cannot be read, reads differently after JSON, contradicts itself, masks
            only under `instance_config`, has no reward, or masks without a known failure kind.
    """
    try:
        verdict = read_verdict(response)
    except ContractError as error:
        raise ConformanceError(f"the response cannot be read: {error}") from error
    problems = list(_problems(response, verdict))
    if problems:
        raise ConformanceError("\n".join([f"the verify response reads as {verdict}, but:", *problems]))
    return verdict


def _problems(response: Any, verdict: Verdict) -> list[str]:
    problems = []
    if (after := _after_json(response)) != verdict:
        problems.append(f"- sent as JSON it reads as {after}")
    if "reward" in verdict.sources:
        problems.append(f"- it has no finite reward ({verdict.failure_kind}): return one, or mask the row")
    if verdict.conflict:
        problems.append("- mask_sample and instance_config.mask_sample disagree: set both or the first")
    elif verdict.mask_sample and not {"mask_sample", "reward", FAILURE_CLASS} & set(verdict.sources):
        problems.append("- it masks only under instance_config: set mask_sample at the top level as well")
    if verdict.mask_sample and verdict.failure_kind is None:
        problems.append("- it masks without a failure_kind: nobody can tell what went wrong")
    kind = verdict.failure_kind
    if kind is not None and not is_registered(kind) and not is_namespaced(kind):
        problems.append(f"- failure_kind {kind!r} is not in the vocabulary: use '<server>:<kind>'")
    return problems


def _after_json(response: Any) -> Verdict | str:
    try:
        if isinstance(response, BaseModel):
            return read_verdict(response.model_dump_json(by_alias=True, exclude_unset=True))
        return read_verdict(response if isinstance(response, (bytes, str)) else json.dumps(dict(response)))
    except (TypeError, ValueError) as error:
        return f"nothing ({error})"
