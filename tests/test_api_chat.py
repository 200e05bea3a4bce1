"""The endpoint of a harness: what OpenAI's own client gets of it, and what each malformed request is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_daemon import FakeDesk, Served, serving
from tttctl.client import Client
from tttdd.errors import Conflict, NotYet, Refused
from tttdd.protocol import RunInfo, Submit

WORDS = ("one ", "two ", "three ⟦")
HEADERS = {"x-tttdd-run": "first"}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}]}
REPORT: dict[str, Any] = {
    "score": 1.5,
    "references": ["receipt-1"],
    "metadata": {"step": 0, "group": 0, "rollout": 0, "groups_per_step": 2, "rollouts_per_group": 3},
}


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk(*WORDS)


@pytest.fixture
def served(tmp_path: Path, desk: FakeDesk) -> Iterator[Served]:
    with serving(tmp_path / "s", desk=desk) as served:
        Client(str(served.socket)).post("/v1/runs", Submit(task="erdos_min_overlap", name="first"), RunInfo)
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(served.socket)), base_url="http://tttdd") as client:
        yield client


@pytest.fixture
def client(http: httpx.Client) -> openai.OpenAI:
    return openai.OpenAI(
        base_url="http://tttdd/v1", api_key="none", http_client=http, default_headers=HEADERS, max_retries=0
    )


def test_a_completion_is_what_openais_client_expects_and_carries_its_receipt(
    client: openai.OpenAI, desk: FakeDesk
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="first",
        messages=[{"role": "developer", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}],
        max_completion_tokens=7,
        stop=["]", "END"],
        seed=-3,
        temperature=1.0,
        top_p=1,
        n=1,
        frequency_penalty=0,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    found = raw.parse()
    assert raw.headers["x-tttdd-receipt"] == "receipt-1" == found.receipt  # type: ignore[attr-defined]
    (choice,) = found.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("".join(WORDS), "assistant", "stop")
    assert found.usage and (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (
        3,
        3,
        6,
    )
    assert (found.model, found.system_fingerprint, found.object) == ("first", "release-0", "chat.completion")
    (ask,) = desk.asked
    assert [(turn.role, turn.content) for turn in ask.turns] == [("system", "S"), ("user", "U")]
    assert (ask.thinking, ask.stop, ask.seed, ask.max_new_tokens) == (True, ("]", "END"), -3, 7)


def test_a_stream_brings_the_text_as_it_is_sampled_and_the_receipt_at_its_end(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="first",
        messages=[{"role": "user", "content": "Count."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "".join(WORDS) and sum(map(bool, pieces)) > 1
    last, usage = chunks[-2:]
    assert (last.choices[0].finish_reason, last.receipt) == ("stop", "receipt-1")  # type: ignore[attr-defined]
    assert usage.choices == [] and usage.usage and usage.usage.total_tokens == 6
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)


def test_a_stream_ends_as_server_sent_events_do(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", headers=HEADERS, json=BODY | {"stream": True})
    assert answer.headers["content-type"] == "text/event-stream"
    events = answer.text.split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]
    assert "receipt" not in json.loads(events[0].removeprefix("data: "))


def test_an_answer_without_a_text_is_streamed_too(tmp_path: Path) -> None:
    with serving(tmp_path / "s", desk=FakeDesk()) as served:
        Client(str(served.socket)).post("/v1/runs", Submit(task="erdos_min_overlap", name="first"), RunInfo)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(served.socket))) as http:
            answer = http.post("http://tttdd/v1/chat/completions", headers=HEADERS, json=BODY | {"stream": True})
    assert '"receipt":"receipt-1"' in answer.text and answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (NotYet("no release yet", hint="ask again"), 503, openai.InternalServerError),
        (Conflict("run 'first' is finished", field="run"), 409, openai.ConflictError),
        (Refused("messages: too long", field="messages"), 400, openai.BadRequestError),
    ],
)
def test_what_cannot_be_sampled_has_its_status_before_the_first_byte(
    client: openai.OpenAI, desk: FakeDesk, stream: bool, fault: Any, status: int, kind: type[openai.APIStatusError]
) -> None:
    desk.fault = fault
    with pytest.raises(kind, match=fault.message) as refused:
        client.chat.completions.create(model="first", messages=[{"role": "user", "content": "?"}], stream=stream)
    assert refused.value.status_code == status
    assert refused.value.param == fault.field
    assert refused.value.response.headers.get("x-should-retry") == (None if status == 503 else "false")
    assert refused.value.response.headers.get("retry-after") == ("1" if status == 503 else None)


def test_a_stream_that_is_broken_off_says_so_and_has_no_receipt(client: openai.OpenAI, desk: FakeDesk) -> None:
    desk.fault, desk.told = NotYet("the step ended while this was sampled"), 2
    heard: list[str] = []
    with pytest.raises(openai.APIError, match="the step ended while this was sampled"):
        for chunk in client.chat.completions.create(
            model="first", messages=[{"role": "user", "content": "?"}], stream=True
        ):
            heard.append(chunk.choices[0].delta.content or "")
            assert not hasattr(chunk, "receipt")
    assert "".join(heard) == "one two "


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_hangs_up_ends_its_completion(
    http: httpx.Client, tmp_path: Path, served: Served, desk: FakeDesk, stream: bool
) -> None:
    desk.words = ("word ",) * 10_000
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(served.socket)), timeout=0.3) as impatient,
    ):
        url = "http://tttdd/v1/chat/completions"
        with impatient.stream("POST", url, headers=HEADERS, json=BODY | {"stream": stream}) as answer:
            next(answer.iter_raw())
            raise httpx.ReadTimeout("enough")
    deadline = time.monotonic() + 5
    while not desk.hung_up and time.monotonic() < deadline:
        time.sleep(0.01)
    assert desk.hung_up == 1
    assert http.get("/v1/health").status_code == 200


CHAT, REPORTS = "/v1/chat/completions", "/v1/runs/first/reports"


def chat(**changes: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, BODY | changes


def report(**changes: Any) -> tuple[str, dict[str, Any]]:
    return REPORTS, REPORT | changes


def metadata(**changes: Any) -> tuple[str, dict[str, Any]]:
    return REPORTS, REPORT | {"metadata": REPORT["metadata"] | changes}


OWN = "leave it out: training needs samples of the model's own distribution, as it is"
MALFORMED: list[tuple[tuple[str, Any], int, str | None, str]] = [
    (chat(messages=[]), 400, "messages", "length >= 1"),
    (chat(messages="hello"), 400, "messages", "Expected `array`"),
    ((CHAT, {}), 400, "messages", "messages is required"),
    (chat(messages=[{"role": "tool", "content": "x"}]), 400, "messages[0].role", "Invalid enum value 'tool'"),
    (chat(messages=[{"role": "user"}]), 400, "messages[0].content", "is required"),
    (chat(messages=[{"role": "user", "content": None}]), 400, "messages[0].content", "got `null`"),
    (chat(messages=[{"role": "user", "content": "x", "name": "n"}]), 400, "messages[0].name", "unknown field"),
    (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]),
        400,
        "messages[0].content[0].type",
        "Invalid enum value 'image_url'",
    ),
    (chat(n=2), 400, "n", "<= 1"),
    (chat(temperature=0.7), 400, "temperature", ">= 1.0"),
    (chat(temperature=0), 400, "temperature", ">= 1.0"),
    (chat(top_p=0.9), 400, "top_p", ">= 1.0"),
    (chat(presence_penalty=0.5), 400, "presence_penalty", "<= 0.0"),
    (chat(frequency_penalty=-1), 400, "frequency_penalty", ">= 0.0"),
    (chat(max_tokens=0), 400, "max_tokens", ">= 1"),
    (chat(max_tokens=3, max_completion_tokens=4), 400, "max_tokens", "are the same, and differ"),
    (chat(max_tokens=True), 400, "max_tokens", "got `bool`"),
    (chat(stop=""), 400, "stop", "length >= 1"),
    (chat(stop=["a"] * 5), 400, "stop", "length <= 4"),
    (chat(stop=["a" * 257]), 400, "stop[0]", "length <= 256"),
    (chat(seed=1.5), 400, "seed", "got `float`"),
    (chat(seed=2**63), 400, "seed", ""),
    (chat(stream="yes"), 400, "stream", "got `str`"),
    (chat(stream_options={"include_usage": True}), 400, "stream_options", "only with stream"),
    (chat(model="gpt-4"), 400, "model", "'gpt-4' is not the run that the header names"),
    (chat(chat_template_kwargs={"thinking": True}), 400, "chat_template_kwargs.thinking", "unknown field"),
    *(
        (chat(**{field: value}), 400, field, f"unknown field '{field}'")
        for field, value in (
            ("tools", []),
            ("tool_choice", "auto"),
            ("response_format", {"type": "json_object"}),
            ("logprobs", True),
            ("top_logprobs", 3),
            ("logit_bias", {}),
            ("top_k", 40),
            ("lora_path", "other"),
            ("release", 0),
            ("user", "me"),
        )
    ),
    ((CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}'), 400, None, "the body is not valid JSON"),
    ((CHAT, b'{"messages": ['), 400, None, "the body is not valid JSON"),
    ((CHAT, b"[]"), 400, None, "Expected `object`"),
    (report(score=True), 400, "score", "Expected `float`, got `bool`"),
    (report(score="1"), 400, "score", "Expected `float`, got `str`"),
    (report(score=None), 400, "score", "got `null`"),
    (report(score=2e100), 400, "score", "<= 1e+100"),
    (report(score=-(10**400)), 400, "score", ""),
    ((REPORTS, b'{"score": NaN}'), 400, None, "the body is not valid JSON"),
    ((REPORTS, b'{"score": 1e999}'), 400, "score", ""),
    ((REPORTS, {key: value for key, value in REPORT.items() if key != "score"}), 400, "score", "score is required"),
    (report(references=[]), 400, "references", "length >= 1"),
    (report(references=["a", "b"]), 400, "references", "length <= 1"),
    (report(references="receipt-1"), 400, "references", "Expected `array`"),
    (report(references=[7]), 400, "references[0]", "got `int`"),
    (report(metadata=None), 400, "metadata", "got `null`"),
    (metadata(step=-1), 400, "metadata.step", ">= 0"),
    (metadata(step=True), 400, "metadata.step", "got `bool`"),
    (metadata(step=0.5), 400, "metadata.step", "got `float`"),
    (metadata(group="0"), 400, "metadata.group", "got `str`"),
    (metadata(rollout=-1), 400, "metadata.rollout", ">= 0"),
    (metadata(groups_per_step=0), 400, "metadata.groups_per_step", ">= 1"),
    (metadata(rollouts_per_group=None), 400, "metadata.rollouts_per_group", "got `null`"),
    ((REPORTS, REPORT | {"metadata": {"step": 0}}), 400, "metadata.group", "is required"),
    ((REPORTS, b'{"metadata": {"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}"), 400, None, "nested too deeply"),
    (report(report_id=""), 400, "report_id", "length >= 1"),
    (report(report_id=7), 400, "report_id", "got `int`"),
    (report(reward=1.0), 400, "reward", "unknown field 'reward'"),
]


@pytest.mark.parametrize(("request_", "status", "field", "said"), MALFORMED)
def test_a_malformed_request_is_told_its_field_and_the_rule(
    http: httpx.Client, request_: tuple[str, Any], status: int, field: str | None, said: str
) -> None:
    path, body = request_
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post(path, headers=HEADERS, content=content)
    told = answer.json()
    assert (answer.status_code, told.get("field")) == (status, field), told
    assert said in (told["error"] if path == REPORTS else told["error"]["message"])
    if field in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        assert told["hint"] == OWN


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [({}, 400, "x-tttdd-run"), ({"x-tttdd-run": ""}, 400, "x-tttdd-run"), ({"x-tttdd-run": "frist"}, 404, "run")],
)
def test_a_completion_without_a_run_of_that_name_is_told_so(
    http: httpx.Client, headers: dict[str, str], status: int, field: str
) -> None:
    answer = http.post(CHAT, headers=headers, json=BODY)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_openais_client_is_told_what_is_wrong_on_every_path(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="score: Expected `float`, got `bool`") as refused:
        client.post("/runs/first/reports", body=REPORT | {"score": True}, cast_to=object)
    assert refused.value.param == "score"
    with pytest.raises(openai.NotFoundError, match="no run 'frist'"):
        client.get("/runs/frist/grid", cast_to=object)
    with pytest.raises(openai.NotFoundError, match="no such path: /v1/models") as unknown:
        client.models.list()
    assert unknown.value.response.headers["x-should-retry"] == "false"


def test_two_runs_in_two_headers_are_refused(http: httpx.Client) -> None:
    twice = http.post(CHAT, headers=[("x-tttdd-run", "first"), ("x-tttdd-run", "other")], json=BODY)
    assert (twice.status_code, twice.json()["field"]) == (400, "x-tttdd-run")


def test_a_report_is_answered_with_where_it_stands(http: httpx.Client) -> None:
    answer = http.post(REPORTS, json=REPORT | {"report_id": "r", "metadata": REPORT["metadata"] | {"more": [1, None]}})
    assert (answer.status_code, answer.json()) == (
        200,
        {"run": "first", "receipt": "receipt-1", "step": 0, "group": 0, "rollout": 0, "accepted": True},
    )
    assert http.get("/v1/runs/first/grid").json()["missing"] == [{"group": 1, "rollout": 2}]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=4,
)


@st.composite
def almost_right(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A request of which some fields, at any depth, have other values or are gone."""
    path, body = draw(st.sampled_from([chat(stop="x", seed=1, stream=True), report(report_id="r")]))
    body = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = body
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
                continue
            if draw(st.booleans()):
                node[key] = draw(values)
            else:
                del node[key]
            break
    return path, body


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    socket = tmp_path_factory.mktemp("fuzzed") / "s"
    with serving(socket, desk=FakeDesk("x")) as served:
        Client(str(served.socket)).post("/v1/runs", Submit(task="erdos_min_overlap", name="first"), RunInfo)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://tttdd") as client:
            yield client


@given(request_=almost_right())
@settings(max_examples=150, deadline=None)
def test_an_almost_right_request_is_served_or_told_what_is_wrong(
    fuzzed: httpx.Client, request_: tuple[str, dict[str, Any]]
) -> None:
    path, body = request_
    answer = fuzzed.post(path, headers=HEADERS, content=json.dumps(body).encode("utf-8", "surrogatepass"))
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        told = answer.json()
        assert told["error"] and set(told) <= {"error", "field", "hint"}
        said = told["error"] if path == REPORTS else told["error"]["message"]
        assert told.get("field") or "JSON" in said or "Expected `object`" in said
