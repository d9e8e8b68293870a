"""Who may ask the console for something: by the table of its rules, and over real sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla.console.security import Rules, is_local, refusal
from ottla.testing import Broker
from support.console import ConsoleProcess

LOCAL = Rules("127.0.0.1", 8080)
OPEN = Rules("0.0.0.0", 8080, token="secret", names=("kafka.example",))
READ_ONLY = Rules("127.0.0.1", 8080, read_only=True)


def action(rules: Rules, **changed: str | None) -> dict[str, str]:
    """The headers of an action of our own page, with some changed or left out."""
    headers = {
        "host": "127.0.0.1:8080",
        "origin": "http://127.0.0.1:8080",
        "sec-fetch-site": "same-origin",
        "content-type": "application/json",
        "content-length": "2",
        "x-ottla-csrf": rules.csrf,
        "cookie": f"{rules.cookie}={rules.session}",
        **{name.replace("_", "-"): value for name, value in changed.items() if value is not None},
    }
    return {name: value for name, value in headers.items() if changed.get(name.replace("-", "_"), "") is not None}


@pytest.mark.parametrize(
    ("rules", "method", "path", "headers", "status"),
    [
        (LOCAL, "GET", "/", {"host": "localhost:8080"}, None),
        (LOCAL, "GET", "/", {"host": "[::1]:8080"}, None),
        (LOCAL, "GET", "/", {"host": "evil.example:8080"}, 421),  # a name that was bound to our address
        (LOCAL, "GET", "/", {}, 421),
        (LOCAL, "POST", "/", action(LOCAL), 405),
        (LOCAL, "GET", "/api/topics", {"host": "127.0.0.1:8080"}, None),
        (LOCAL, "GET", "/api/topics", {"host": "127.0.0.1:8080", "sec-fetch-site": "cross-site"}, 403),
        (LOCAL, "GET", "/api/topics", {"host": "127.0.0.1:8080", "sec-fetch-site": "same-site"}, 403),
        (LOCAL, "GET", "/api/topics", {"host": "127.0.0.1:8080", "origin": "http://evil.example"}, 403),
        (LOCAL, "POST", "/api/topics", action(LOCAL), None),
        (LOCAL, "POST", "/api/topics", action(LOCAL, origin="http://127.0.0.1:9999"), 403),  # another port is another site
        (LOCAL, "POST", "/api/topics", action(LOCAL, origin="null"), 403),
        (LOCAL, "POST", "/api/topics", action(LOCAL, x_ottla_csrf=None), 403),
        (LOCAL, "POST", "/api/topics", action(LOCAL, x_ottla_csrf=OPEN.csrf), 403),
        (LOCAL, "POST", "/api/topics", action(LOCAL, content_type="text/plain"), 415),  # what a form may send
        (LOCAL, "POST", "/api/topics", action(LOCAL, content_length=None), 413),
        (LOCAL, "POST", "/api/topics", action(LOCAL, content_length=str(1 << 30)), 413),
        (LOCAL, "POST", "/api/topics", action(LOCAL, transfer_encoding="chunked"), 413),  # may be longer than it says
        (LOCAL, "DELETE", "/api/topics/t", action(LOCAL, x_ottla_csrf=None), 403),
        (READ_ONLY, "GET", "/api/topics", {"host": "localhost"}, None),
        (READ_ONLY, "POST", "/api/topics", action(READ_ONLY), 403),
        (READ_ONLY, "DELETE", "/api/topics/t", action(READ_ONLY), 403),
        (OPEN, "GET", "/", {"host": "10.0.0.7:8080"}, None),  # the empty shell
        (OPEN, "GET", "/", {"host": "kafka.example"}, None),
        (OPEN, "GET", "/", {"host": "evil.example"}, 421),
        (OPEN, "GET", "/api/topics", {"host": "10.0.0.7:8080"}, 401),
        (OPEN, "GET", "/api/topics", {"host": "10.0.0.7:8080", "authorization": "Bearer secret"}, None),
        (OPEN, "GET", "/api/topics", {"host": "10.0.0.7:8080", "authorization": "Bearer wrong"}, 401),
        (OPEN, "GET", "/api/topics", {"host": "10.0.0.7:8080", "cookie": f"{OPEN.cookie}={OPEN.session}"}, None),
        (OPEN, "GET", "/api/topics", {"host": "10.0.0.7:8080", "cookie": f"{OPEN.cookie}={LOCAL.session}"}, 401),
        (OPEN, "POST", "/api/topics", action(OPEN, cookie=None), 401),
        (OPEN, "POST", "/api/login", action(OPEN, cookie=None, x_ottla_csrf=None), None),
        (OPEN, "POST", "/api/login", action(OPEN, origin="http://evil.example"), 403),
    ],
)
def test_rules(rules: Rules, method: str, path: str, headers: dict[str, str], status: int | None) -> None:
    found = refusal(rules, method, path, headers)
    assert (found.status if found is not None else None) == status


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_what_others_cannot_reach(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_answers_carry_the_policy_and_cannot_be_shared(broker: Broker) -> None:
    with ConsoleProcess(broker.bootstrap_servers) as console:
        for path in ("/", "/main.js", "/api/session", "/api/nothing", "/nothing.js"):
            answer = console.request("GET", path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in answer.headers
        assert console.request("GET", "/../app.py").status == 404
        assert console.request("GET", "/api/session", host="evil.example").status == 421
        page = console.request("GET", "/").body.decode()
        assert "<script>" not in page
        assert "style=" not in page


def test_an_action_of_another_site_does_nothing(broker: Broker) -> None:
    with ConsoleProcess(broker.bootstrap_servers) as console:
        token = console.get("session")["csrf"]
        given = {"content_type": "application/json", "x_ottla_csrf": token}
        body = b'{"name": "stolen"}'
        assert console.request("POST", "/api/topics", body, origin="http://evil.example", **given).status == 403
        assert console.request("POST", "/api/topics", body, content_type="application/json").status == 403
        assert console.request("POST", "/api/topics", body, content_type="text/plain", x_ottla_csrf=token).status == 415
        assert "stolen" not in {topic["name"] for topic in console.get("topics")["topics"]}
        assert console.request("POST", "/api/topics", body, **given).status == 200
        assert "stolen" in {topic["name"] for topic in console.get("topics")["topics"]}


def test_read_only_refuses_every_action(broker: Broker) -> None:
    with ConsoleProcess(broker.bootstrap_servers, "--read-only") as console:
        assert console.get("session")["readOnly"] is True
        for order in (
            "POST topics",
            "DELETE topics/stolen",
            "POST topics/stolen/messages",
            "POST topics/stolen/settings",
            "POST topics/stolen/partitions",
            "DELETE group?name=g",
            "POST group/offsets?name=g",
            "POST transactions/abort",
        ):
            method, path = order.split()
            refused = console.order(path, {"confirm": "stolen"}, method)
            assert (refused.status, refused.json) == (403, {"error": "This console is read-only."})


def test_a_token_opens_it(broker: Broker) -> None:
    with ConsoleProcess(broker.bootstrap_servers, "--token", "open sesame") as console:
        assert console.request("GET", "/").status == 200
        assert console.request("GET", "/api/overview").status == 401
        assert console.request("GET", "/api/topics", authorization="Bearer open sesame").status == 200
        login = {"content_type": "application/json"}
        for wrong in (b'{"token": "open"}', b'{"token": ["open sesame"]}', b"[]", b"{", b"{}"):
            assert console.request("POST", "/api/login", wrong, **login).status == 401
        opened = console.request("POST", "/api/login", b'{"token": "open sesame"}', **login)
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "open" not in cookie.partition(";")[0]  # the token itself is not kept in the browser
        assert console.request("GET", "/api/topics", cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others: set --token"),
        (["--bootstrap-server", "nowhere"], "bootstrap.servers"),
        (["--command-config", "/no/such/file"], "/no/such/file"),
        (["--host", "192.0.2.1", "--token", "t"], "cannot listen on 192.0.2.1:8080"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "ottla", "console", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("ottla console: ")
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
