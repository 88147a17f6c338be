"""A real NeMo Gym resources server whose session store loses sessions on purpose.

Each task asks for four sums. `/seed_session` puts them into the session; `/verify` counts the right
answers among the four. What goes wrong is drawn from a fixed seed:

- The session store drops sessions, long answers before short ones, and restarts during two tasks.
  Without its session an answer cannot be graded: `mask_sample` with `session_lost`.
- Tasks of one agent are graded by a judge that is sometimes down. That raises, and Gym's own
  `judge_failsafe` makes the row.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import MagicMock

from fastapi import Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import reraise_judge_errors
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from pydantic import ConfigDict, Field, PrivateAttr

SEED = 7  # one that shows every kind of damage: lost groups, turned signs, a baseline moved
RESTARTS = {3, 10}
"""Tasks during which the session store restarts."""


def draw(*names: object) -> float:
    """Return a number in [0, 1) that depends on the names alone."""
    return random.Random(f"{SEED}/" + "/".join(map(str, names))).random()


class _WithIndices(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    sums: list[list[int]]
    judged: bool = False
    task: int = Field(default=0, alias="_ng_task_index")
    rollout: int = Field(default=0, alias="_ng_rollout_index")


class SumsVerifyRequest(_WithIndices, BaseVerifyRequest):
    """The answer, and which rollout it belongs to."""


class SumsVerifyResponse(BaseVerifyResponse):
    """Gym's response with the number of right answers."""

    right: int | None = None


class SumsServer(SimpleResourcesServer):
    """Grades sums, when it still has the session."""

    ray_enabled = False
    config: BaseResourcesServerConfig
    _sessions: dict[str, list[int]] = PrivateAttr(default_factory=dict)

    async def seed_session(self, request: Request, body: _WithIndices) -> BaseSeedSessionResponse:
        self._sessions[request.session[SESSION_ID_KEY]] = [sum(pair) for pair in body.sums]
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: SumsVerifyRequest) -> SumsVerifyResponse:
        answer = body.response.output_text
        if _store_drops(body, answer):
            self._sessions.pop(request.session[SESSION_ID_KEY], None)
        expected = self._sessions.pop(request.session[SESSION_ID_KEY], None)
        if expected is None:
            return self._response(
                body,
                reward=0.0,
                mask_sample=True,
                failure_kind="session_lost",
                failure_reason="the session store no longer has this session",
            )
        if body.judged:
            right = await reraise_judge_errors(_ask_judge(body, expected, answer))
        else:
            right = _count_right(expected, answer)
        return self._response(body, reward=right / len(expected), right=right)

    @staticmethod
    def _response(body: SumsVerifyRequest, **fields: Any) -> SumsVerifyResponse:
        request = {"responses_create_params": body.responses_create_params, "response": body.response}
        return SumsVerifyResponse(**request, **fields)


def make_server(host: str, port: int, name: str = "sums") -> SumsServer:
    """Build the server; it calls no other one."""
    config = BaseResourcesServerConfig(host=host, port=port, entrypoint="", name=name, domain="math")
    return SumsServer(config=config, server_client=MagicMock(spec=ServerClient))


def _store_drops(body: SumsVerifyRequest, answer: str) -> bool:
    if body.task in RESTARTS:
        return draw("restart", body.task, body.rollout) < 0.8
    return draw("drop", body.task, body.rollout) < (0.3 if len(answer) > 60 else 0.08)


async def _ask_judge(body: SumsVerifyRequest, expected: list[int], answer: str) -> int:
    if draw("judge", body.task, body.rollout) < 0.15:
        raise ConnectionError("judge: connection refused")
    return _count_right(expected, answer)


def _count_right(expected: list[int], answer: str) -> int:
    given = [line.rpartition("=")[2].strip() for line in answer.splitlines()]
    return sum(str(value) == text for value, text in zip(expected, given, strict=False))
