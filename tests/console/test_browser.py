"""The console in a real browser: every screen and every action, at desktop and phone width, with Ottla and with Apache Kafka.

With OTTLA_SCREENSHOTS=1 the screens are kept as docs/console/*.png.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from console.scenes import MARKUP, SETTINGS, Scene, at_work, furnish, hang
from ottla import client
from ottla.client import TopicPartition
from ottla.testing import Cluster as Brokers
from support.anchor import open_apache
from support.console import ConsoleProcess

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium")
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PICTURES = Path(__file__).parents[2] / "docs" / "console" if os.environ.get("OTTLA_SCREENSHOTS") == "1" else None
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not here: `scripts/prepare browser` installs it where it may")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def ottla_scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        brokers = stack.enter_context(Brokers(3, SETTINGS))
        cluster = stack.enter_context(client.Cluster(brokers.bootstrap_servers))
        furnish(cluster)
        stack.enter_context(at_work(brokers.bootstrap_servers))
        dirs = ",".join(broker.directory for broker in brokers.brokers.values())
        console = stack.enter_context(ConsoleProcess(brokers.bootstrap_servers, "--log-dirs", dirs))
        yield Scene("ottla", "", console.url, cluster)


@pytest.fixture(scope="module")
def apache_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack:
        broker = stack.enter_context(open_apache(str(tmp_path_factory.mktemp("apache")), SETTINGS))
        cluster = stack.enter_context(client.Cluster(broker.bootstrap_servers))
        furnish(cluster)
        stack.enter_context(at_work(broker.bootstrap_servers))
        console = stack.enter_context(ConsoleProcess(broker.bootstrap_servers))
        yield Scene("apache", "", console.url, cluster)


@pytest.fixture(params=["ottla-desktop", "ottla-phone", pytest.param("apache-desktop", marks=pytest.mark.java)])
def scene(request: pytest.FixtureRequest) -> Scene:
    kind, view = request.param.split("-")
    found: Scene = request.getfixturevalue(f"{kind}_scene")
    return Scene(kind, view, found.url, found.cluster)


@pytest.fixture
def page(browser: Browser, scene: Scene) -> Iterator[Page]:
    yield from opened(browser, scene.view)


def opened(browser: Browser, view: str) -> Iterator[Page]:
    """A page on which nothing may go wrong: no script fails, and the policy refuses nothing."""
    width, height = SIZES[view]
    scheme: Literal["dark", "light"] = "dark" if view == "phone" else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(TIMEOUT_MS)
    shown = context.new_page()
    wrong: list[str] = []
    shown.on("pageerror", lambda problem: wrong.append(str(problem)))
    shown.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield shown
    unexpected = [text for text in wrong if "status of 4" not in text]  # refusals that a test provokes
    context.close()
    assert not unexpected


def go(page: Page, scene: Scene, where: str) -> None:
    """To a screen, until it shows what it has to; nothing is wider than the page."""
    page.goto(f"{scene.url}#/{where}")
    page.wait_for_selector(f'[data-ready="#/{where}"]')
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[scene.view][0]


def keep(page: Page, scene: Scene, name: str) -> None:
    """A picture for the documentation, if one is wanted."""
    if PICTURES is not None and scene.kind == "ottla":
        from PIL import Image  # noqa: PLC0415 - only for pictures

        PICTURES.mkdir(exist_ok=True)
        path = PICTURES / f"{name}-{scene.view}.png"
        page.mouse.move(0, 0)
        page.wait_for_timeout(15_000 if name in ("overview", "group") else 300)  # figures over some time are worth more
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(255).save(path, optimize=True)


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=text).first


def figure(page: Page, name: str) -> Locator:
    return page.locator(".stat").filter(has_text=name).locator("b")


def said(page: Page, words: str) -> None:
    """A short word after an action; it is put away so that it covers nothing."""
    toast = page.locator(".toast").filter(has_text=words).first
    expect(toast).to_be_visible()
    page.evaluate("document.getElementById('toasts').replaceChildren()")


def test_overview(page: Page, scene: Scene) -> None:
    go(page, scene, "")
    expect(page.locator(".calm")).to_contain_text("All partitions are led")
    brokers = page.locator("section").filter(has=page.get_by_role("heading", name="Brokers", exact=True))
    expect(brokers.locator("tbody tr")).to_have_count(3 if scene.kind == "ottla" else 1)
    expect(brokers.get_by_text("controller")).to_have_count(1)
    expect(figure(page, "Brokers")).to_have_text("3" if scene.kind == "ottla" else "1")
    expect(page.locator(".chart")).to_have_count(4)
    expect(page.locator(".chart path.line[d*=L]")).to_have_count(7 if scene.kind == "ottla" else 5)
    expect(figure(page, "Written")).to_have_text(re.compile("^[1-9].*/s$"))
    busiest = page.locator("section").filter(has=page.get_by_role("heading", name="Busiest topics"))
    expect(busiest.locator("tbody tr").first).to_contain_text("orders")
    keep(page, scene, "overview")
    page.locator(".chart svg").first.hover()
    expect(page.locator(".chart .cursor")).to_have_count(1)


def test_topics_are_listed_created_and_deleted(page: Page, scene: Scene, topic: str) -> None:
    go(page, scene, "topics")
    expect(row(page, "orders")).to_be_visible()
    expect(page.get_by_text("__consumer_offsets")).to_have_count(0)
    keep(page, scene, "topics")
    page.get_by_label("internal").check()
    expect(row(page, "__consumer_offsets")).to_contain_text("internal")
    page.locator("th button").first.click()
    expect(page.locator("tbody tr").last).to_contain_text("__consumer_offsets")
    page.get_by_placeholder("Filter topics").fill("pay")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Create a topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("not a name!")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not a name!")
    dialog.get_by_label("Name").fill(topic)
    dialog.get_by_label("Partitions").fill("4")
    dialog.get_by_label("Settings, one on each line").fill("retention.ms=3600000\ncleanup.policy=compact")
    keep(page, scene, "create")
    dialog.get_by_role("button", name="Create").click()
    said(page, f"Topic {topic} was created.")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    expect(figure(page, "Partitions")).to_have_text("4")
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm = dialog.get_by_role("button", name="Delete")
    expect(confirm).to_be_disabled()
    dialog.get_by_label(f"Type {topic} to confirm").fill(topic[:-1])
    expect(confirm).to_be_disabled()
    dialog.get_by_label(f"Type {topic} to confirm").fill(topic)
    confirm.click()
    said(page, f"Topic {topic} was deleted.")
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    assert topic not in scene.cluster.topics()


def test_partitions_settings_and_readers(page: Page, scene: Scene, topic: str) -> None:
    client.create_topic(scene.cluster, topic, 2)
    go(page, scene, "topics/orders/partitions")
    expect(page.locator("tbody tr")).to_have_count(6)
    expect(page.locator(".replica.leader")).to_have_count(6)
    keep(page, scene, "partitions")
    go(page, scene, f"topics/{topic}/settings")
    row(page, "max.message.bytes").get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("many")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("max.message.bytes")
    dialog.get_by_label("Value").fill("2000000")
    dialog.get_by_role("button", name="Save").click()
    said(page, "max.message.bytes was changed.")
    page.get_by_label("changed only").check()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(row(page, "max.message.bytes")).to_contain_text("2000000")
    keep(page, scene, "settings")
    row(page, "max.message.bytes").get_by_role("button", name="Change").click()
    dialog.get_by_role("button", name="Back to the default").click()
    said(page, "max.message.bytes was changed.")
    expect(page.locator("tbody tr")).to_have_count(0)
    page.get_by_role("button", name="Add partitions").click()
    dialog.get_by_label("Partitions in all").fill("5")
    dialog.get_by_role("button", name="Add").click()
    said(page, f"{topic} has 5 partitions now.")
    expect(figure(page, "Partitions")).to_have_text("5")
    go(page, scene, "topics/orders/groups")
    expect(row(page, "reports")).to_contain_text("Empty")
    expect(row(page, "billing")).to_contain_text("Stable")


def test_messages_are_searched(page: Page, scene: Scene, topic: str) -> None:
    client.create_topic(scene.cluster, topic, 3)
    values = [b'{"n": %d, "word": "needle-%d"}' % (one, one % 1000) for one in range(5000)]
    client.write(topic, pa.table({"key": [b"k%d" % one for one in range(5000)], "value": values}), cluster=scene.cluster)
    go(page, scene, f"topics/{topic}")
    messages = page.locator(".message")
    expect(messages).to_have_count(100)  # the newest, and more where they came from
    page.get_by_label("Search for").fill('NEEDLE-77"')
    page.keyboard.press("Enter")
    expect(messages).to_have_count(5)
    expect(page.get_by_text("5 messages · 5,000 of 5,000 looked at")).to_be_visible()
    page.get_by_label("Search in").select_option("key")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Nothing found: 0 messages")).to_be_visible()
    page.get_by_label("How to match").select_option("regex")
    page.get_by_label("Search for").fill("^k49[0-9]{2}$")
    page.get_by_label("From", exact=True).select_option("oldest")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(messages).to_have_count(100)
    page.get_by_label("Search for").fill("[")
    page.get_by_role("button", name="Search", exact=True).click()
    said(page, "is not a regular expression")
    page.get_by_label("Search for").fill("")
    page.get_by_label("Partitions").fill("1")
    page.get_by_label("From", exact=True).select_option("offset")
    page.get_by_label("Offset").fill("40")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(messages.first).to_contain_text("1:40")
    page.get_by_role("button", name="Search on").click()
    expect(messages).to_have_count(200)
    expect(messages.last).to_contain_text("1:239")
    page.get_by_label("From", exact=True).select_option("time")
    page.get_by_label("Time").fill("2033-01-01T00:00:00")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Nothing found")).to_be_visible()


def test_a_message_is_opened_and_never_becomes_markup(page: Page, scene: Scene) -> None:
    go(page, scene, "topics/payments")
    page.get_by_label("Search for").fill("onerror")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_have_count(1)
    expect(page.locator(".message .value")).to_have_text(MARKUP)
    page.locator(".message").click()
    expect(page.locator("pre.content")).to_have_text(MARKUP)
    assert page.locator("main img, main script").count() == 0
    assert "Ottla console" in page.title()
    page.get_by_role("button", name="Hex").click()
    expect(page.locator("pre.content")).to_contain_text("000000  3c 69 6d 67 20 73 72 63")
    page.get_by_label("Search for").fill("p-2")
    page.keyboard.press("Enter")
    expect(page.locator(".message .value")).to_contain_text("0x0001ff")
    page.get_by_label("committed only").check()  # its transaction is open
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Nothing found")).to_be_visible()
    go(page, scene, "topics/orders")
    page.locator(".message").nth(1).click()
    expect(page.locator("pre.content .json-key").first).to_have_text('"id"')
    expect(page.locator(".opened dl")).to_contain_text("Header source")
    keep(page, scene, "messages")
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator("pre.content")).to_contain_text('{"id": ')
    page.locator(".message").nth(1).click()
    expect(page.locator(".opened")).to_have_count(0)


def test_a_message_is_sent_edited_and_sent_again(page: Page, scene: Scene, topic: str) -> None:
    client.create_topic(scene.cluster, topic, 2)
    go(page, scene, f"topics/{topic}")
    page.get_by_role("button", name="Send a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key: kind").select_option("text")
    dialog.get_by_label("Key", exact=True).fill("Anna")
    dialog.get_by_label("Value", exact=True).fill('{"city": "Praha"}')
    dialog.get_by_role("button", name="Add a header").click()
    dialog.get_by_label("Header name").fill("trace")
    dialog.get_by_label("Header value").fill("77")
    dialog.get_by_label("Partition", exact=True).fill("1")
    keep(page, scene, "send")
    dialog.get_by_role("button", name="Send").click()
    said(page, "Sent: partition 1, offset 0.")
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".message").click()
    page.get_by_role("button", name="Edit and send again").click()
    expect(dialog.get_by_label("Header value")).to_have_value("77")
    dialog.get_by_label("Value", exact=True).fill('{"city": "Brno"}')
    dialog.get_by_role("button", name="Send").click()
    said(page, "Sent: partition 1, offset 1.")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".message")).to_have_count(2)
    page.get_by_role("button", name="Send a message").click()
    dialog.get_by_label("Value: kind").select_option("hex")
    dialog.get_by_label("Value", exact=True).fill("not hex")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_role("alert")).to_contain_text("hexadecimal digits")
    dialog.get_by_label("Value: kind").select_option("null")
    dialog.get_by_role("button", name="Send").click()
    said(page, "Sent: ")
    columns = ["key", "value", "headers", "partition", "offset"]
    found = client.read(topic, cluster=scene.cluster, partitions=[1], columns=columns).table().to_pylist()[:2]
    assert [(one["key"], one["value"]) for one in found] == [(b"Anna", b'{"city": "Praha"}'), (b"Anna", b'{"city": "Brno"}')]
    assert found[1]["headers"] == [{"key": "trace", "value": b"77"}]


def test_live_tail(page: Page, scene: Scene, topic: str) -> None:
    client.create_topic(scene.cluster, topic, 2)
    go(page, scene, f"topics/{topic}")
    page.get_by_role("button", name="Live tail").click()
    expect(page.get_by_text("Live: 2 partitions")).to_be_visible()  # from now on: what was written before is not shown
    client.write(topic, pa.table({"value": [b"the first"]}), cluster=scene.cluster)
    expect(page.locator(".message").first).to_contain_text("the first")
    client.write(topic, pa.table({"value": [b"one of many"] * 30_000}), cluster=scene.cluster)
    expect(page.get_by_text("30,001 messages")).to_be_visible()
    expect(page.locator(".skipped")).to_contain_text("not shown")
    keep(page, scene, "tail")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_internal_topics_are_decoded(page: Page, scene: Scene) -> None:
    go(page, scene, "topics/__consumer_offsets")
    page.get_by_label("Search for").fill("reports")
    page.keyboard.press("Enter")
    expect(page.locator(".message").first).to_contain_text('"group":"reports"')
    page.locator(".message").first.click()
    expect(page.get_by_role("button", name="Decoded")).to_have_attribute("aria-pressed", "true")
    keep(page, scene, "decoded")


def test_groups_lag_members_resets_and_deletion(page: Page, scene: Scene, topic: str) -> None:
    places = [TopicPartition("orders", number) for number in range(6)]
    client.commit_offsets(scene.cluster, topic, dict.fromkeys(places, 20))
    go(page, scene, "groups")
    expect(row(page, "billing")).to_contain_text("Stable")
    expect(row(page, topic)).to_contain_text("Empty")
    keep(page, scene, "groups")
    go(page, scene, "groups/billing")
    expect(page.get_by_text("orders 0-5", exact=True)).to_be_visible()
    expect(page.locator(".chart path.line[d*=L]").first).to_be_attached()
    page.get_by_role("button", name="by partition").click()
    expect(page.locator(".legend span").nth(5)).to_be_visible()
    keep(page, scene, "group")
    go(page, scene, f"groups/{topic}")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    apply = dialog.get_by_role("button", name="Reset offsets")
    expect(apply).to_be_disabled()
    dialog.get_by_label("Topic").select_option("orders")
    dialog.get_by_label("Partitions").fill("0,1")
    dialog.get_by_label("Move").select_option("shift")
    dialog.get_by_label("Value").fill("-5")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("tbody tr")).to_have_count(2)
    expect(dialog.locator("tbody tr").first).to_have_text(re.compile("orders-0.*20.*15.*-5"))
    keep(page, scene, "reset")
    dialog.get_by_label("Value").fill("-6")  # what was previewed does not count any more
    expect(apply).to_be_disabled()
    dialog.get_by_role("button", name="Preview").click()
    apply.click()
    said(page, "2 offsets reset.")
    committed = client.committed_offsets(scene.cluster, topic)
    assert [committed[place].offset for place in places] == [14, 14, 20, 20, 20, 20]
    page.get_by_role("button", name="Delete offsets").click()
    dialog.get_by_label("Partitions").fill("0")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("tbody tr")).to_have_text(re.compile("orders-0.*14.*deleted"))
    dialog.get_by_role("button", name="Delete offsets").click()
    said(page, "1 offset deleted.")
    assert places[0] not in client.committed_offsets(scene.cluster, topic)
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_label(f"Type {topic} to confirm").fill(topic)
    dialog.get_by_role("button", name="Delete").click()
    said(page, f"Group {topic} was deleted.")
    assert client.committed_offsets(scene.cluster, topic) == {}


def test_transactions_and_the_end_of_one_that_hangs(page: Page, scene: Scene, topic: str) -> None:
    hang(scene.cluster, topic)
    go(page, scene, "transactions")
    expect(row(page, "nightly-export").first).to_be_visible()
    expect(page.get_by_text("Ongoing")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("1 transaction hangs")
    expect(row(page, topic)).to_contain_text("hangs")
    keep(page, scene, "transactions")
    row(page, topic).get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort it").click()
    said(page, "The transaction was aborted.")
    expect(page.get_by_text("No transaction hangs.")).to_be_visible()
    place = TopicPartition(topic, 0)
    assert client.list_offsets(scene.cluster, {place: -1}, "read_committed")[place] == 2  # behind the record and its marker


def test_disks(page: Page, scene: Scene) -> None:
    go(page, scene, "disks")
    page.get_by_placeholder("Filter logs").fill("customers-1")
    if scene.kind == "apache":
        expect(page.get_by_text("start the console with --log-dirs")).to_be_visible()
        expect(row(page, "customers-1")).to_be_visible()
        return
    keep(page, scene, "disks")
    expect(row(page, "customers-1")).to_contain_text("%")
    page.get_by_role("button", name="Segments of customers-1").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("active")).to_have_count(1)
    expect(dialog.get_by_text("are dirty")).to_be_visible()
    expect(dialog.get_by_text(re.compile("^(dirty|clean)$")).first).to_be_visible()
    keep(page, scene, "segments")
    dialog.get_by_role("button", name="Close").click()


def test_keyboard_and_colours(page: Page, scene: Scene) -> None:
    go(page, scene, "")
    page.keyboard.press("Tab")
    page.locator("nav a").nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    go(page, scene, "topics/orders")
    expect(page.locator(".message").first).to_be_visible()
    page.locator(".message").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".opened")).to_be_visible()
    page.get_by_role("button", name="Send a message").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    expect(page.locator(".message").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before  # and it is remembered


def test_the_first_page_is_light(page: Page, scene: Scene) -> None:
    sizes: list[int] = []
    page.on("response", lambda response: sizes.append(int(response.headers.get("content-length", 0))))
    go(page, scene, "")
    assert 0 < sum(sizes) < 200_000
    loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(name.startswith(scene.url) for name in loaded)


# ---- with Ottla alone ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["desktop", "phone"])
def view(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_problems_come_first(browser: Browser, view: str) -> None:
    with Brokers(3, SETTINGS) as brokers, client.Cluster(brokers.bootstrap_servers) as cluster:
        client.create_topic(cluster, "orders", 6, 3)
        client.create_topic(cluster, "lonely", 3, 1)
        with ConsoleProcess(brokers.bootstrap_servers) as console:
            brokers.kill(brokers.leader_of("lonely", 0))
            scene = Scene("ottla", view, console.url, cluster)
            for page in opened(browser, view):
                go(page, scene, "")
                trouble = page.get_by_role("alert", name="Problems")
                expect(trouble).to_contain_text("lonely: partition 0 offline, nobody leads")
                expect(trouble).to_contain_text("orders: partitions 0, 1, 2, 3, 4, 5 under-replicated")
                expect(trouble).to_contain_text(re.compile("Broker . is not there"))
                assert page.locator("main h2").first.text_content() == "3 problems"
                expect(page.locator("nav .count")).to_have_text("3")
                expect(page.get_by_text("not there", exact=True)).to_be_visible()
                keep(page, scene, "problems")
                trouble.get_by_role("link", name=re.compile("lonely")).click()
                expect(page.get_by_text("1 offline")).to_be_visible()
                expect(page.locator("tbody").get_by_text("offline")).to_have_count(1)


def test_a_console_that_is_read_only_and_asks_for_a_token(browser: Browser, ottla_scene: Scene, view: str) -> None:
    bootstrap = ",".join(map(str, ottla_scene.cluster.settings.bootstrap))
    with ConsoleProcess(bootstrap, "--read-only", "--token", "open sesame") as console:
        scene = Scene("ottla", view, console.url, ottla_scene.cluster)
        for page in opened(browser, view):
            page.goto(scene.url)
            page.get_by_label("Token").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("That is not the token")
            keep(page, scene, "token")
            page.get_by_label("Token").fill("open sesame")
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            expect(page.locator("#live")).to_contain_text("Read-only")
            for where in ("topics", "topics/orders", "topics/orders/settings", "groups/reports", "transactions"):
                go(page, scene, where)
                names = page.get_by_role("button").all_text_contents()
                assert not {"Create a topic", "Send a message", "Delete", "Change", "Reset offsets", "Abort"} & set(names)
            page.reload()
            expect(page.get_by_role("heading", name="Transactions", exact=True)).to_be_visible()
