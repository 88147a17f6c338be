"""Records examples/lost_sessions*.jsonl: the real NeMo Gym 0.7.0 collecting from our servers over HTTP.

    python integration/gym/record.py examples/lost_sessions.jsonl

Five servers run on free loopback ports: our resources server, two scripted agents, and Gym's own
`legacy_agent` environment server before each. Gym's own collector asks them and writes the files: the
rollouts, `_failures` and `_materialized_inputs`. Everything is drawn from a fixed seed, so the files
come out the same every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from environment_servers.legacy_agent.app import (
    LegacyAgentEnvironmentServer,
    LegacyAgentEnvironmentServerConfig,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from scripted_agent import ScriptedAgent, ScriptedAgentConfig
from sums_server import draw, make_server

HOST = "127.0.0.1"
TASKS = 16
ROLLOUTS = 8
SUMS = "sums"
AGENTS: dict[str, dict[str, Any]] = {
    "mental_arithmetic": {"skill": 0.85, "killed": [[4, 6], [12, 1], [12, 2]]},
    "judged_arithmetic": {"skill": 0.7, "crashing": [[7, 3], [13, 5]]},
}


def tasks() -> list[dict[str, Any]]:
    """Return the tasks as a Gym data set; odd ones go to the agent whose work is judged."""
    return [_task(number) for number in range(TASKS)]


async def record(output: Path) -> None:
    """Start the servers, let Gym's collector run, and leave its files at and beside `output`."""
    names = [SUMS, *AGENTS, *map(_environment, AGENTS)]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(_global_config(ports))
    async with contextlib.AsyncExitStack() as servers:
        for name, app in _apps(ports):
            await servers.enter_async_context(serving(app, ports[name]))
        with tempfile.TemporaryDirectory() as scratch:
            asked = Path(scratch) / "tasks.jsonl"
            asked.write_text("".join(json.dumps(task) + "\n" for task in tasks()))
            await RolloutCollectionHelper().run_from_config(_collection(asked, output))


@contextlib.asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[None]:
    """Serve `app` on a loopback port while the block runs."""
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            raise RuntimeError(f"expected a server on port {port}, found that it stopped: {task}")
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _task(number: int) -> dict[str, Any]:
    pairs = [[int(10 + 89 * draw("sum", number, place, side)) for side in "ab"] for place in range(4)]
    asked = "Add, one answer per line: " + ", ".join(f"{first} + {second}" for first, second in pairs)
    agent = list(AGENTS)[number % 2]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": asked}]},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "task_source": SUMS,
        "sums": pairs,
        "judged": agent.startswith("judged"),
    }


def _apps(ports: dict[str, int]) -> list[tuple[str, Any]]:
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=1),
        global_config_dict=OmegaConf.create(_global_config(ports)),
    )
    apps: list[tuple[str, Any]] = [(SUMS, make_server(HOST, ports[SUMS], SUMS).setup_webserver())]
    for name, options in AGENTS.items():
        address = {"host": HOST, "entrypoint": "", "port": ports[name], "name": name}
        reference = {"type": "resources_servers", "name": SUMS}
        agent_config = ScriptedAgentConfig(**address, resources_server=reference, **options)
        agent = ScriptedAgent(config=agent_config, server_client=client)
        front = _environment(name)
        address |= {"port": ports[front], "name": front}
        relay_config = LegacyAgentEnvironmentServerConfig(**address, agent_server=_agent_reference(name))
        relay = LegacyAgentEnvironmentServer(config=relay_config, server_client=client)
        apps += [(name, agent.setup_webserver()), (front, relay.setup_webserver())]
    return apps


def _global_config(ports: dict[str, int]) -> dict[str, Any]:
    """Return what Gym's launcher would tell every process: who serves what, and where."""
    at = {name: {"host": HOST, "port": port, "entrypoint": ""} for name, port in ports.items()}
    config: dict[str, Any] = {"head_server": {"host": HOST, "port": 1}}
    config[SUMS] = {"resources_servers": {SUMS: {**at[SUMS], "domain": "math"}}}
    for name in AGENTS:
        reference = {"type": "resources_servers", "name": SUMS}
        config[name] = {
            "responses_api_agents": {"scripted_agent": {**at[name], "resources_server": reference}}
        }
        front = {**at[_environment(name)], "agent_server": _agent_reference(name)}
        config[_environment(name)] = {"environment_servers": {"legacy_agent": front}}
    return config


def _collection(asked: Path, output: Path) -> RolloutCollectionConfig:
    return RolloutCollectionConfig(
        input_jsonl_fpath=str(asked),
        output_jsonl_fpath=str(output),
        num_repeats=ROLLOUTS,
        num_samples_in_parallel=1,  # one after the other: the order of the rows is the order of the tasks
        route_failures_to_sidecar=True,
        disable_aggregation=True,
        disable_health_check=True,
    )


def _environment(agent: str) -> str:
    return f"{agent}_environment"


def _agent_reference(agent: str) -> dict[str, str]:
    return {"type": "responses_api_agents", "name": agent}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as sockets:
        held = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in held]


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
