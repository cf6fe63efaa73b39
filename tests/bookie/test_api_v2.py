"""`/api/v2` of a bookie process: its description is OpenAPI, and every answer is as it says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jsonschema
import pytest
from openapi_spec_validator import validate

from bkspark.blocking import Client
from bookie_service.admin.http.openapi import FLAG, TEXT, TEXTS, WHOLE, array, members, problem
from tests.bookie.child import BookieChild
from tests.bookie.http_process import HTTP
from tests.polling import wait_until

OPTIONAL = {
    "b": {**TEXT, "enum": ["x", "y"]},
    "c": array(FLAG),
    "d": {**WHOLE, "minimum": 1},
    "e": {**TEXT, "maxLength": 4},
}
ALL = members({"a": WHOLE}, OPTIONAL)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": 1, "b": "x", "c": [True]}, ""),
        ([], "the body must be an object"),
        ({}, "the body lacks a"),
        ({"a": 1, "f": 2}, "the body has no member 'f'"),
        ({"a": True}, "a must be an integer"),
        ({"a": "1"}, "a must be an integer"),
        ({"a": 1, "b": "z"}, "b must be one of x, y"),
        ({"a": 1, "c": {}}, "c must be an array"),
        ({"a": 1, "c": [1]}, "c must be a boolean"),
        ({"a": 1, "d": 0}, "d must be at least 1"),
        ({"a": 1, "e": "12345"}, "e must have at most 4 characters"),
    ],
)
def test_body_is_checked_by_the_description(value: object, complaint: str) -> None:
    assert problem(ALL, value).startswith(complaint)
    assert bool(problem(ALL, value)) == bool(complaint)
    assert problem(TEXTS, {"any": "text"}) == ""
    is_right = not list(jsonschema.Draft202012Validator(ALL).iter_errors(value))
    assert is_right == (not complaint), "as a validator of JSON Schema says"


class Api:
    """Sends requests, and checks each answer by the description."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.document = self.send("GET", "/api/v2/openapi.json")[1]
        self.asked: set[tuple[str, str]] = set()

    def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            with urlopen(Request(self.origin + path, data, headers, method=method), timeout=60) as reply:
                assert reply.headers["Content-Type"] == "application/json"
                return reply.status, json.load(reply)
        except HTTPError as error:
            return error.code, json.load(error)

    def __call__(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        code, found = self.send(method, path, body)
        assert code == status, found
        route = next(route for route in self.document["paths"] if self._matches(route, path.partition("?")[0]))
        operation = self.document["paths"][route][method.lower()]
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        if "$ref" in schema:
            schema = self.document["components"]["schemas"]["Error"]
        jsonschema.validate(found, schema)
        if status < 300:
            self.asked.add((method.lower(), route))
        return found

    @staticmethod
    def _matches(route: str, path: str) -> bool:
        parts, given = route.split("/"), path.split("/")
        return len(parts) == len(given) and all(p.startswith("{") or p == g for p, g in zip(parts, given))


def check_plans(api: Api, child: BookieChild) -> None:
    """Begin and end plans for the bookie."""
    at = f"/api/v2/cluster/bookies/{child.id}"
    assert api("GET", "/api/v2/plans") == {"plans": []}
    plan = api("PUT", f"{at}/plan", {"kind": "maintenance", "seconds": 600, "reason": "new disk"})
    assert plan["until_ms"] - plan["since_ms"] == 600_000
    wait_until(lambda: api("GET", "/api/v2/bookie")["plan"] == "maintenance", "the bookie to follow")
    assert api("GET", "/api/v2/bookie")["reason"].endswith(": new disk")
    assert [each["kind"] for each in api("GET", "/api/v2/plans")["plans"]] == ["maintenance"]
    api("PUT", f"{at}/plan", {"kind": "quarantine"}, status=400)
    api("PUT", f"{at}/plan", {"kind": "drain"}, status=400)
    api("PUT", "/api/v2/cluster/bookies/127.0.0.1:1/plan", {"kind": "quarantine"}, status=404)
    api("GET", "/api/v2/cluster/bookies/127.0.0.1:1/drain", status=404)
    api("POST", "/api/v2/cluster/bookies/127.0.0.1:1/drain", {}, status=404)
    api("POST", f"{at}/drain", {}, status=400)
    assert api("DELETE", f"{at}/plan") == {"bookie": child.id, "ended": True}
    api("DELETE", f"{at}/plan", status=404)
    preview = api("GET", f"{at}/drain")
    assert (preview["ledgers"], preview["without_spare"], preview["targets"]) == (2, 2, [])
    assert "no other bookie" in api("POST", f"{at}/drain", {}, status=400)["error"]["message"]
    assert f"audit: http:127.0.0.1: maintenance of bookie {child.id}" in child.log_text()


def check_drain(api: Api, child: BookieChild) -> None:
    """Begin a drain to another bookie, slowly, and cancel it."""
    at = f"/api/v2/cluster/bookies/{child.id}"
    # Such a rate was stored, and no process could read the plan, neither to follow nor to cancel it.
    api("POST", f"{at}/drain", {"bytes_per_s": 1 << 63}, status=400)
    assert api("GET", "/api/v2/plans") == {"plans": []}
    draining = api("POST", f"{at}/drain", {"bytes_per_s": 1}, status=202)
    # A new rate for the drain that runs was answered 400, and it was set.
    assert api("POST", f"{at}/drain", {"bytes_per_s": 2}, status=202)["id"] == draining["id"]
    assert f"audit: http:127.0.0.1: set the rate of the drain of bookie {child.id} to 2" in child.log_text()
    assert api("DELETE", f"{at}/plan")["ended"] is True
    operation = f"/api/v2/operations/{draining['id']}"
    wait_until(lambda: api("GET", operation)["state"] == "failed", "the drain to be cancelled")
    assert "was cancelled" in api("GET", operation)["error"]
    assert f"audit: http:127.0.0.1: drain bookie {child.id}" in child.log_text()


def check_bookie(api: Api, child: BookieChild) -> None:
    state = api("GET", "/api/v2/bookie")
    assert (state["id"], state["phase"]) == (child.id, "serving")
    assert api("PUT", "/api/v2/bookie/read-only", {"read_only": True, "reason": "r"})["reason"] == "r"
    api("PUT", "/api/v2/bookie/read-only", {"read_only": False})
    # Half a pair of surrogates cannot be in a registration: the cluster would not know that it is read-only.
    odd = api("PUT", "/api/v2/bookie/read-only", b'{"read_only": true, "reason": "\\ud800\\n"}')
    assert odd["reason"] == "\\ud800\\n"
    assert api("GET", "/api/v2/cluster/bookies")["bookies"][0]["state"] == "readonly"
    assert api("PUT", "/api/v2/bookie/read-only", {"read_only": False})["read_only"] is False
    everything = {"minor": True, "major": True, "collection": True}
    assert api("PUT", "/api/v2/bookie/collection/suspended", everything)["is_suspended"] is True
    api("POST", "/api/v2/bookie/collection", {}, status=400)
    api("PUT", "/api/v2/bookie/collection/suspended", dict.fromkeys(everything, False))
    operation = api("POST", "/api/v2/bookie/collection", {"major": True}, status=202)
    at = f"/api/v2/operations/{operation['id']}"
    wait_until(lambda: api("GET", at)["state"] == "done", "garbage to be collected")
    assert "freed_bytes" in api("GET", at)["result"]
    api("GET", "/api/v2/bookie/collection")
    answer = api("PATCH", "/api/v2/bookie/keys", {"compactionRate": "5"})
    assert answer == {"changed": {"compactionRate": {"old": "", "new": "5"}}, "notes": []}
    assert api("GET", "/api/v2/bookie/keys")["compactionRate"] == "5"
    assert api("GET", "/api/v2/bookie/limbo") == {"ledgers": [], "next": None}


def check_cluster(api: Api) -> None:
    assert api("GET", "/api/v2/cluster/bookies")["bookies"][0]["state"] == "available"
    assert api("GET", "/api/v2/underreplicated") == {"ledgers": [], "next": None}
    assert api("GET", "/api/v2/autorecovery")["enabled"] is True
    wanted = {"enabled": False, "lost_bookie_delay_s": 9, "bytes_per_s": 1000}
    assert api("PATCH", "/api/v2/autorecovery", wanted).items() >= wanted.items()
    assert api("PATCH", "/api/v2/autorecovery", {"bytes_per_s": None})["bytes_per_s"] is None
    assert api("GET", "/api/v2/repairs") == {"workers": []}
    assert len(api("GET", "/api/v2/operations")["operations"]) == 1


def check_moves(api: Api, serving: str, stopped: str) -> None:
    """A move that cannot be done is refused at once; one that `/api/v1` has begun, as Apache's bookies do, fails."""
    before = api("GET", "/api/v2/operations")["operations"]
    # It was accepted, and failed as an operation.
    unknown = api("POST", "/api/v2/cluster/bookies/127.0.0.1:1/recover", {"forget": True}, status=404)
    assert unknown["error"]["message"].startswith("there is no bookie 127.0.0.1:1; known are ")
    refused = api("POST", f"/api/v2/cluster/bookies/{serving}/recover", {}, status=400)
    assert refused["error"]["message"] == f"bookie {serving} is serving: stop it first"
    assert api("GET", "/api/v2/operations")["operations"] == before
    body = json.dumps({"bookie_src": "127.0.0.1:1"}).encode()
    with urlopen(Request(f"{api.origin}/api/v1/autorecovery/decommission", body, method="PUT"), timeout=60) as reply:
        assert reply.status == 200
    moving = api("GET", "/api/v2/operations")["operations"][len(before)]
    wait_until(lambda: api("GET", f"/api/v2/operations/{moving['id']}")["state"] == "failed", "the move to fail")
    assert "there is no bookie 127.0.0.1:1" in api("GET", f"/api/v2/operations/{moving['id']}")["error"]
    moving = api("POST", f"/api/v2/cluster/bookies/{stopped}/recover", {"forget": True}, status=202)
    wait_until(lambda: api("GET", f"/api/v2/operations/{moving['id']}")["state"] == "done", "the move to end")
    assert stopped not in [each["id"] for each in api("GET", "/api/v2/cluster/bookies")["bookies"]]


def check_ledgers(api: Api) -> None:
    assert api("GET", "/api/v2/ledgers?limit=2") == {"ledgers": [0, 1], "next": 1}
    assert api("GET", "/api/v2/ledgers?limit=2&after=1") == {"ledgers": [2], "next": None}
    ledger = api("GET", "/api/v2/ledgers/2")
    assert (ledger["lastEntryId"], ledger["state"]) == (11, "CLOSED")
    assert "password" not in ledger
    for query, known in (("ledgers?limt=1", "after, limit"), ("operations?limit=1", "none")):
        wrong = api("GET", f"/api/v2/{query}", status=400)["error"]["message"]
        assert wrong.endswith(f"; it takes {known}")
    # A bookie answers a read of entry -1 with the last entry, which does not belong on a page.
    wrong = api("GET", "/api/v2/ledgers/2/entries?after=-2", status=400)["error"]["message"]
    assert wrong == "after must be at least -1"
    page = api("GET", "/api/v2/ledgers/2/entries?limit=10")
    assert [base64.b64decode(each["value"]) for each in page["entries"]] == [b"\x00\xff%d" % n for n in range(10)]
    page = api("GET", f"/api/v2/ledgers/2/entries?after={page['next']}")
    assert [each["entry"] for each in page["entries"]] == [10, 11]
    assert page["next"] is None
    assert api("DELETE", "/api/v2/ledgers/2") == {"ledger": 2}


def check_ends(api: Api) -> None:
    """After the last id that can be there is nothing."""
    last = (1 << 63) - 1
    for path in ("ledgers", "ledgers/1/entries", "bookie/limbo", "underreplicated"):
        found = api("GET", f"/api/v2/{path}?after={last}")
        assert list(found.values()) == [[], None], path


def check_large_entries(api: Api, client: Client) -> None:
    """A page that is cut because its entries are large has a next one."""
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([bytes(1_000_000)] * 20)
    at, found, after = f"/api/v2/ledgers/{writer.ledger_id}", [], -1
    while after is not None:
        page = api("GET", f"{at}/entries?limit=1000&after={after}")
        found.append([each["entry"] for each in page["entries"]])
        after = page["next"]
    assert found == [list(range(17)), [17, 18, 19]]
    api("DELETE", at)


def check_audit(api: Api) -> None:
    audit = api("GET", "/api/v2/audit?limit=2")
    assert [each["number"] for each in audit["records"]] == sorted(
        (r["number"] for r in audit["records"]), reverse=True
    )
    assert all(each["who"].startswith("http:127.0.0.1") for each in audit["records"])
    earlier = api("GET", f"/api/v2/audit?before={audit['next']}")["records"]
    assert earlier[0]["number"] == audit["next"] - 1
    assert any(each["change"].startswith("set read-only") for each in earlier + audit["records"])


def check_refusals(api: Api) -> None:
    for method, path, body, status in (
        ("GET", "/api/v2/ledgers?limit=0", None, 400),
        ("GET", "/api/v2/ledgers?after=x", None, 400),
        *(
            ("GET", f"/api/v2/{path}?{name}={number}", None, 400)
            for path, name in (("ledgers", "after"), ("bookie/limbo", "after"), ("audit", "before"))
            for number in (1 << 63, -(1 << 63) - 1, "9" * 30, "1_0", "%D9%A1")
        ),
        ("GET", "/api/v2/ledgers/x", None, 400),
        ("GET", "/api/v2/ledgers/77", None, 404),
        ("DELETE", "/api/v2/ledgers/77", None, 404),
        ("PUT", "/api/v2/bookie/read-only", {"read_only": "yes"}, 400),
        ("PUT", "/api/v2/bookie/read-only", {"read_only": True, "x": 1}, 400),
        ("PATCH", "/api/v2/bookie/keys", {"bookiePort": "1"}, 400),
        ("PATCH", "/api/v2/autorecovery", {"lost_bookie_delay_s": -1}, 400),
        ("GET", "/api/v2/operations/none", None, 404),
        # A body that is absent, empty or hostile, and ids that no bookie can have: none of them is a defect.
        ("PUT", "/api/v2/bookie/read-only", b"[" * 20_000, 400),
        ("PATCH", "/api/v2/bookie/keys", b'{"a":' * 10_000, 400),
        ("PUT", "/api/v2/bookie/read-only", b"9" * 5_000, 400),
        ("PUT", "/api/v2/bookie/read-only", b"\xff", 400),
        ("PUT", "/api/v2/bookie/read-only", None, 400),
        ("PUT", "/api/v2/bookie/read-only", {"read_only": True, "reason": "r" * 201}, 400),
        ("POST", "/api/v2/cluster/bookies/%00/recover", {}, 400),
        ("DELETE", "/api/v2/cluster/bookies/%00/plan", None, 400),
        ("GET", "/api/v2/cluster/bookies/a%20b/drain", None, 400),
    ):
        error = api(method, path, body, status)
        assert error["error"]["status"] == status
    for path in ("bookie/keys", "autorecovery"):
        assert api("PATCH", f"/api/v2/{path}") == api("PATCH", f"/api/v2/{path}", b"null")
    assert api.send("PATCH", "/api/v2/bookie/keys", b" " * (256 * 1024 + 1))[0] == 413
    assert api.send("GET", "/api/v2")[0] == 404
    assert api.send("POST", "/api/v2/bookie")[0] == 405
    assert api.send("GET", "/api/v2/nothing")[0] == 404


@pytest.mark.cluster
def test_every_path_answers_as_the_description_says(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP)
    with child.running():
        api = Api(child.facts["http_port"])
        validate(api.document)
        with Client(uri, password=b"s3cret") as client:
            for number in range(3):
                with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                    writer.append_many([b"\x00\xff%d" % entry for entry in range(10 + number)])
            check_large_entries(api, client)
        check_bookie(api, child)
        check_ends(api)
        check_ledgers(api)
        check_cluster(api)
        check_audit(api)
        check_plans(api, child)
        second = BookieChild(tmp_path / "second", uri)
        with second.running():
            check_drain(api, child)
        check_moves(api, child.id, second.id)
        check_refusals(api)
        assert api("POST", "/api/v2/bookie/restart") == {}
        described = {(method, path) for path, methods in api.document["paths"].items() for method in methods}
        assert described == api.asked, "every path of the description was asked"
        wait_until(lambda: child.log_text().count(" serves: ") == 2, "the bookie to restart")
