"""The status page in a real browser: headless Chromium, driven by WebDriver, against daemons of this process.

Not collected by ``make test``, which needs no browser; ``make test-browser`` names this file. Screenshots lie in
``artifacts/``.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from lab.ports import free_port_base
from prefill_service.writers.shm import ShmWriter
from protocol.messages import StagingReq, StagingRsp, Subscribed
from runtime.host import shared_memory_host_id
from tests.unit.embedded import CHUNK_TOKENS, RUN, WAIT_S, EmbeddedPair, Stranger, subscribe

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1500"),
)
EVIL = "<img src=x onerror=document.title='pwned'>"

Browser = webdriver.Chrome


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser with a profile of its own."""
    with tempfile.TemporaryDirectory() as profile:
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        started = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
        yield started
        started.quit()


class Scene:
    """A pair of daemons, and a prefill that asked for a place, was granted it, and says nothing more."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port_base(2)
        decode = {
            "http_port": self.port,
            "stall_warn_s": 0.2,
            "heartbeat_s": 0.2,
            "lease_s": 1.0,
            "grace_s": 0.2,
            "quarantine_s": 120.0,
        }
        self.pair = EmbeddedPair(folder, decode=decode, prefill={"http_port": self.port + 1, "stall_warn_s": 0.2})
        self.decode_page = f"http://127.0.0.1:{self.port}/"
        self.prefill_page = f"http://127.0.0.1:{self.port + 1}/"

    def begin(self) -> None:
        """Some rooms go through; then one room is granted to nobody who writes, and others queue up behind it."""
        engine = self.pair.server.engine
        for number in range(6):
            decode, _ = self.pair.carry(f"room-{number}", 4 * CHUNK_TOKENS)
            assert decode.done
        engine.register_room(EVIL, 0, "strangers", CHUNK_TOKENS, RUN).result(WAIT_S)
        config = self.pair.server.config
        self.stranger = Stranger(self.pair.endpoint)
        host_id = shared_memory_host_id(config.shm_dir)
        self.stranger.say(subscribe(config, planes=("shm",), host_id=host_id))
        answer = self.stranger.hear()
        assert isinstance(answer, Subscribed)
        # It maps the ring as a real writer does, so its silence proves nothing.
        self.writer = ShmWriter(config.shm_dir, answer.region, answer.session, answer.ring_size)
        self.stranger.say(StagingReq(answer.session, EVIL, 0, 0, CHUNK_TOKENS))
        while not isinstance(self.stranger.hear(), StagingRsp):
            pass
        engine.register_room("behind", 0, "prefill", 2 * CHUNK_TOKENS, RUN).result(WAIT_S)
        self.pair.submit("behind", 2 * CHUNK_TOKENS)


def until(browser: Browser, says: Callable[[], bool]) -> None:
    """Wait until the page says it."""
    WebDriverWait(browser, WAIT_S, poll_frequency=0.1).until(lambda _: says())


def text(browser: Browser, selector: str) -> str:
    """What stands there; nothing if it is not there or was just replaced."""
    found: list[str] = browser.execute_script(TEXTS, selector)
    return " ".join(" ".join(found).split())


TEXTS = "return [...document.querySelectorAll(arguments[0])].map(node => node.innerText)"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """It has begun; at its end the ring is free again and both daemons stop in order."""
    made = Scene(tmp_path_factory.mktemp("scene"))
    with made.pair:
        made.begin()
        yield made
        made.stranger.close()
        assert made.pair.client.engine.wait_room("behind", 0).result(WAIT_S).done


def test_the_decode_page_shows_a_pinned_ring(browser: Browser, scene: Scene) -> None:
    """The ring as it is with its quarantined grant, its last minutes, the sessions, and why chunks are blocked; live."""
    browser.get(scene.decode_page)
    until(browser, lambda: "waits for proof that prefill 'stranger'" in text(browser, "#blocked-0"))
    assert browser.title == "pd-staging decode"
    assert text(browser, "#state") == "ready"
    until(browser, lambda: "quarantined" in text(browser, "#ring-0 .grant.closed"))
    assert EVIL in text(browser, "#ring-0 .grant.closed")
    assert "tail 0" in text(browser, "#ring-0 .tail")
    assert "head " in text(browser, "#ring-0 .head")
    assert "prefill-0 shm" in text(browser, "#sessions-0")
    assert "fenced: silent for" in text(browser, "#sessions-0")
    assert "the region is replaced if no proof has come" in text(browser, "#blocked-0")
    assert "room 'behind' chunk" in text(browser, "#blocked-0")
    until(browser, lambda: bool(browser.execute_script("return document.querySelector('#spacetime-0').naturalWidth > 900")))
    ARTIFACTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(ARTIFACTS / "status-page-decode.png"))


def test_names_are_text(browser: Browser, scene: Scene) -> None:
    """A room whose name is markup is shown as its name: nothing runs, nothing is loaded, and the console has no error."""
    browser.get(scene.decode_page)
    until(browser, lambda: EVIL in text(browser, "#blocked-0"))
    assert browser.title == "pd-staging decode"
    assert browser.execute_script("return [...document.images].filter(image => image.getAttribute('src') === 'x').length") == 0
    console: list[dict[str, str]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert [entry for entry in console if entry["level"] == "SEVERE"] == []


def test_the_prefill_page_shows_what_its_gate_waits_for(browser: Browser, scene: Scene) -> None:
    """The way to each decode rank with its lease and watermark, and the blocked chunk with what it needs and has."""
    browser.get(scene.prefill_page)
    until(browser, lambda: "held at the gate by the ring of decode 'decode' rank 0" in text(browser, "#blocked-0"))
    assert "needs watermark" in text(browser, "#blocked-0")
    assert f"{scene.pair.endpoint} current shm" in text(browser, "#sessions-0")
    assert browser.save_screenshot(str(ARTIFACTS / "status-page-prefill.png"))


def test_the_page_follows_what_happens(browser: Browser, scene: Scene) -> None:
    """Without a reload the blocked chunks go when the proof has come, and a daemon that is gone is not called ready."""
    browser.get(scene.decode_page)
    until(browser, lambda: "waits for proof" in text(browser, "#blocked-0"))
    scene.writer.close()
    until(
        browser,
        lambda: "waits for writer tp 0 pp 0 of group 'strangers', which is not subscribed" in text(browser, "#blocked-0"),
    )
    assert "'behind'" not in text(browser, "#blocked-0")
    scene.pair.server.engine.abort_room(EVIL, 0).result(WAIT_S)
    until(browser, lambda: "Nothing is blocked." in text(browser, "#blocked-0"))
    browser.execute_script("window.fetch = () => Promise.reject(new Error('gone'))")
    until(browser, lambda: text(browser, "#state") == "no answer: gone")
