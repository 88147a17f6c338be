"""Verdicts of a real Gym resources server, asked over real HTTP; Gym's own `judge_failsafe` around it."""

import asyncio
from unittest.mock import patch

import pytest

pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed in this environment (it needs Python 3.13)")
import aiohttp
import sums_server
from record import HOST, free_ports, serving

from samplemask import Disposition, MaskPolicy, Verdict, plan_rows, read_verdict

RIGHT = "1 + 2 = 3\n7"
WRONG = "4\n8"


def request_body(text, judged=False):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    response = {"id": "r", "object": "response", "created_at": 0, "model": "none", "output": [message]}
    response |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    task = {"responses_create_params": {"input": "add"}, "sums": [[1, 2], [3, 4]], "judged": judged}
    return task | {"response": response}


async def ask(cases):
    """Ask one server: seed a session unless it was lost, then verify. Return status and body of each."""
    (port,) = free_ports(1)
    url, replies = f"http://{HOST}:{port}", []
    async with serving(sums_server.make_server(HOST, port).setup_webserver(), port):
        for body, has_session in cases:
            jar = aiohttp.CookieJar(unsafe=True)  # unsafe: also for an address without a name
            async with aiohttp.ClientSession(cookie_jar=jar) as client:
                if has_session:
                    await client.post(f"{url}/seed_session", json=body)
                async with client.post(f"{url}/verify", json=body) as reply:
                    replies.append((reply.status, await reply.read()))
    return replies


@pytest.fixture(scope="module")
def replies():
    cases = {
        "right": (request_body(RIGHT), True),
        "wrong": (request_body(WRONG), True),
        "session lost": (request_body(RIGHT), False),
        "judge down": (request_body(RIGHT, judged=True), True),
    }
    # 0.1: no session is dropped (they are below 0.08), and the judge is down (it is below 0.15).
    with patch.object(sums_server, "draw", lambda *names: 0.1):
        return dict(zip(cases, asyncio.run(ask(cases.values())), strict=True))


def test_every_verdict_is_an_http_200(replies):
    assert [status for status, _ in replies.values()] == [200, 200, 200, 200]


def test_a_right_answer_is_scored(replies):
    assert read_verdict(replies["right"][1]) == Verdict(1.0, False)


def test_a_true_zero_is_scored(replies):
    assert read_verdict(replies["wrong"][1]) == Verdict(0.0, False)


def test_a_lost_session_is_masked(replies):
    reason = "the session store no longer has this session"
    expected = Verdict(0.0, True, "session_lost", reason, ("mask_sample",))
    assert read_verdict(replies["session lost"][1]) == expected


def test_a_judge_that_is_down_is_masked_at_all_three_places_and_counts_as_failed(replies):
    verdict = read_verdict(replies["judge down"][1])
    sources = ("mask_sample", "instance_config.mask_sample", "_ng_failure_class")
    reason = "ConnectionError: judge: connection refused"
    assert verdict == Verdict(0.0, True, "judge_failed", reason, sources)
    assert Disposition.of(verdict) is Disposition.FAILED


def test_a_judge_that_is_down_gives_a_row_that_neither_votes_nor_trains(replies):
    verdicts = [read_verdict(body) for _, body in replies.values()]
    plan = plan_rows([verdict.mask_sample for verdict in verdicts], ["a"] * 4, MaskPolicy())
    assert plan.trains_B.tolist() == [True, True, False, False]
    assert plan.votes_B.tolist() == [True, True, False, False]
