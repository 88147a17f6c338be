"""A NeMo Gym agent that plays a scripted policy: no model, the same answers in every run.

Source of the shape of `run`: the contract of Gym 0.7.0's agents (seed the session, answer, verify).
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollout_collection import NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY
from nemo_gym.server_utils import get_response_json, raise_for_status
from pydantic import ConfigDict
from sums_server import draw

_STARTED = 1_760_000_000
_SECONDS_PER_ROLLOUT = 7


class ScriptedAgentConfig(BaseResponsesAPIAgentConfig):
    """Which environment it plays, and how well."""

    resources_server: ResourcesServerRef
    skill: float
    killed: tuple[tuple[int, int], ...] = ()
    """Rollouts (task, rollout) that die with their process: Gym leaves no row."""
    crashing: tuple[tuple[int, int], ...] = ()
    """Rollouts whose agent answers HTTP 500: Gym writes a row to the failure sidecar."""


class RunRequest(BaseRunRequest):
    """A row of Gym's collector, whatever it carries."""

    model_config = ConfigDict(extra="allow")


class ScriptedAgent(SimpleResponsesAPIAgent):
    """Answers with sums that are right as often as its skill says, and shows its work when they are hard."""

    ray_enabled = False
    config: ScriptedAgentConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise NotImplementedError("the scripted agent is only run whole")

    async def run(self, request: Request, body: RunRequest) -> BaseVerifyResponse:
        row = body.model_dump(mode="json", exclude_unset=True)
        rollout = (row["_ng_task_index"], row["_ng_rollout_index"])
        if rollout in self.config.killed:
            return JSONResponse({NG_NO_PERSIST_KEY: True, NG_FAILURE_CLASS_KEY: "kill_shaped"})
        if rollout in self.config.crashing:
            return JSONResponse({"detail": "the agent's process ran out of memory"}, status_code=500)
        _, cookies = await self._post("/seed_session", row, request.cookies)
        verified, _ = await self._post("/verify", row | {"response": self._response(row, *rollout)}, cookies)
        return JSONResponse(verified)

    async def _post(self, path: str, body: dict[str, Any], cookies: Any) -> tuple[dict[str, Any], Any]:
        name = self.config.resources_server.name
        reply = await self.server_client.post(server_name=name, url_path=path, json=body, cookies=cookies)
        await raise_for_status(reply)
        return await get_response_json(reply), reply.cookies

    def _response(self, row: dict[str, Any], task: int, rollout: int) -> dict[str, Any]:
        text = _answer(row["sums"], self.config.skill, task, rollout)
        message = {
            "id": f"msg_{task}_{rollout}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        asked = len(row["responses_create_params"]["input"][0]["content"].split())
        return {
            "id": f"resp_{task}_{rollout}",
            "object": "response",
            "created_at": _STARTED + _SECONDS_PER_ROLLOUT * (8 * task + rollout),
            "model": "scripted",
            "output": [message],
            "usage": _usage(asked, len(text.split())),
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }


def _answer(sums: list[list[int]], skill: float, task: int, rollout: int) -> str:
    """Write one line per sum; a right answer is worked out more often, so it is longer."""
    lines = []
    for place, (first, second) in enumerate(sums):
        right = draw("answer", task, rollout, place) < skill * (0.4 + 0.9 * draw("ease", task))
        shown = (
            f"{first} + {second} = " if draw("work", task, rollout, place) < (0.9 if right else 0.4) else ""
        )
        lines.append(f"{shown}{first + second if right else first + second + 10}")
    return "\n".join(lines)


def _usage(asked: int, answered: int) -> dict[str, Any]:
    return {
        "input_tokens": asked,
        "output_tokens": answered,
        "total_tokens": asked + answered,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
