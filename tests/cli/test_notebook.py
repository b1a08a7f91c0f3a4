"""The view of a job in a notebook: its HTML, how often it is drawn, and where it is chosen."""

from __future__ import annotations

import io
import sys
import threading
from html.parser import HTMLParser

import pytest

from support.jobs import NOW, at, attempt, checkpoint, condition, failure, job, progress
from support.patience import HANG_S
from trainjob.screen import display as displays
from trainjob.screen import html, notebook
from trainjob.screen.display import Once, PlainDisplay, SilentDisplay
from trainjob.screen.notebook import CellOutput, NotebookDisplay
from trainjob.screen.pace import Pace
from trainjob.screen.panel import Moment
from trainjob_api.v1alpha1 import TrainJob

MOMENT = Moment(now=NOW + 5, started=NOW - 7)
HOUR_S = 3600.0
RESTARTED = {
    "phase": "Running",
    "attempt": attempt(2, cause="UserCodeError", resumedFrom="1-1-4"),
    "failures": {"counted": 1},
    "lastFailure": failure(),
    "history": [
        {"attempt": 1, "cause": "Started", "endCause": "UserCodeError", "startedAt": at(0), "worldSize": 2},
    ],
    "progress": progress(),
    "checkpoint": checkpoint(),
}


class Page(HTMLParser):
    """Its text, and the elements in it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.elements = "", []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


class Drawn:
    """An output that keeps what it shows."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.texts: list[str] = []
        self.threads: list[str] = []
        self.more = threading.Condition()

    def draw(self, html: str, text: str) -> None:
        with self.more:
            self.pages.append(html)
            self.texts.append(text)
            self.threads.append(threading.current_thread().name)
            self.more.notify_all()


def page(of: TrainJob, said: tuple[str, ...] = (), moment: Moment = MOMENT) -> Page:
    return Page(html.view(of, Pace(1, ((NOW, 80), (NOW + 4, 180))), moment, said))


def test_progress_metrics_attempts_and_failures_are_in_view() -> None:
    shown = page(job(RESTARTED), ("+1.0s attempt 1 failed",))
    for words in (
        "2 ranks, attempt 2",
        "1 of 3 restarts used",
        "step 180/450 (40%)  40 ms/step  ETA 9.8s",
        "loss=0.11 accuracy=0.975   checkpoint 1-1-4 at step 180, 1s ago",
        "last failure: attempt 1, rank 1 on digits-1 raised ValueError: bad batch",
        "1 Started UserCodeError 2",
        "2 UserCodeError  2 1-1-4",
        "+1.0s attempt 1 failed",
    ):
        assert words in shown.text
    assert 'value="40"' in html.view(job(RESTARTED), Pace(), MOMENT, ())


def test_what_stays_in_a_saved_notebook_tells_no_age() -> None:
    shown = page(job(RESTARTED), moment=Moment(now=NOW + 5, started=NOW, last=True))
    assert "checkpoint 1-1-4 at step 180" in shown.text
    assert "ago" not in shown.text


def test_all_that_comes_from_the_user_is_escaped() -> None:
    evil = '<script>alert("1")</script><img src=x onerror=y>'
    status = {
        **RESTARTED,
        "attempt": attempt(2, cause=evil, resumedFrom=evil),
        "lastFailure": failure(message=evil, reason=evil),
        "progress": progress(
            metrics={evil: 1.0}, nonFinite={"metric": evil, "value": "NaN", "position": 1, "count": 1}
        ),
        "checkpoint": {"latest": {"id": evil, "time": at(4), "bytes": 1}, "count": 1},
    }
    before = page(job(RESTARTED), ("a line",)).elements
    after = page(job(status), (evil,))
    assert set(after.elements) == set(before) | {"span"}
    assert after.text.count("<script>") >= 5
    waiting = job({"conditions": [condition("WorkersReady", "False", "Waiting", evil)]})
    assert "script" not in page(waiting).elements


def test_a_job_of_many_attempts_shows_the_newest() -> None:
    past = [
        {"attempt": n, "cause": f"cause{n}", "endCause": "x", "startedAt": at(n), "worldSize": 2} for n in range(89, 99)
    ]
    shown = page(job({"attempt": attempt(99), "history": past}))
    assert "cause98" in shown.text
    assert shown.elements.count("tr") == html.ATTEMPTS_SHOWN + 1


def test_a_first_attempt_needs_no_table() -> None:
    assert "table" not in page(job({"attempt": attempt(), "progress": progress()})).elements


def test_however_often_the_job_changes_the_view_is_drawn_at_its_own_rate() -> None:
    output = Drawn()
    display = NotebookDisplay(output, io.StringIO(), every_s=HOUR_S)
    display.note("digits: 2 ranks")
    for step in range(1, 401):
        display.status(job({"attempt": attempt(), "progress": progress(step)}))
    display.close()
    assert len(output.pages) == 2, "the first, and the one that stays"
    assert "step 400/450" in output.pages[-1]
    assert "digits: 2 ranks" in output.pages[-1]
    assert set(output.threads) == {threading.current_thread().name}, "in whose cell it stands"


def test_a_change_that_nothing_follows_comes_into_view() -> None:
    output = Drawn()
    display = NotebookDisplay(output, io.StringIO(), every_s=0.01)
    display.status(job({"attempt": attempt()}))
    display.status(job(RESTARTED))
    with output.more:
        assert output.more.wait_for(lambda: any("attempt 2" in page for page in output.pages), timeout=HANG_S)
    display.close()
    drawn = len(output.pages)
    assert not any(thread.name == "view of the job" for thread in threading.enumerate())
    assert "attempt 2" in output.texts[drawn - 1], "for those who show no HTML"


def test_the_workers_lines_go_below_the_view() -> None:
    output, out = Drawn(), io.StringIO()
    display = NotebookDisplay(output, out, every_s=HOUR_S)
    display.line("r00 | hello")
    display.note("stopping")
    display.close()
    assert out.getvalue() == "r00 | hello\n"
    assert "hello" not in output.pages[-1]
    assert "stopping" in output.pages[-1], "also of a job that never began"


def test_a_notebook_that_takes_no_view_ends_no_job() -> None:
    class Broken:
        drawn = 0

        def draw(self, html: str, text: str) -> None:
            self.drawn += 1
            raise RuntimeError("the kernel's socket is closed")

    output, out = Broken(), io.StringIO()
    display = NotebookDisplay(output, out, every_s=HOUR_S)
    display.note("begins")
    display.status(job(RESTARTED))
    display.line("r00 | still there")
    display.close()
    said = "the view of the job cannot be shown: RuntimeError: the kernel's socket is closed"
    assert (output.drawn, out.getvalue().splitlines()) == (1, [said, "r00 | still there"])


def test_a_view_that_cannot_be_made_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise ValueError("no such figure")

    monkeypatch.setattr(notebook.html, "view", fails)
    output, out = Drawn(), io.StringIO()
    display = NotebookDisplay(output, out, every_s=HOUR_S)
    display.status(job(RESTARTED))
    display.line("r00 | still there")
    display.close()
    said = "the view of the job cannot be shown: ValueError: no such figure"
    assert (output.pages, out.getvalue().splitlines()) == ([], [said, "r00 | still there"])


def test_the_view_keeps_the_newest_lines_alone() -> None:
    output = Drawn()
    display = NotebookDisplay(output, io.StringIO(), every_s=HOUR_S)
    for number in range(100):
        display.note(f"line {number}.")
    display.close()
    assert output.texts[-1].count("line ") == notebook.LINES_SHOWN
    assert "line 99." in output.texts[-1]


class ZMQInteractiveShell:
    """What a Jupyter kernel's shell is called."""


class Shell(ZMQInteractiveShell):
    """Colab's is a subclass."""


@pytest.mark.parametrize(
    ("shell", "kernel"), [(Shell(), True), (ZMQInteractiveShell(), True), (object(), False), (None, False)]
)
def test_the_view_is_for_kernels(shell: object, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert notebook.in_kernel() is kernel
    chosen = displays.choose(plain=False, verbose=True, environment={})
    assert isinstance(chosen, NotebookDisplay if kernel else PlainDisplay)
    assert isinstance(displays.choose(plain=False, environment={}), Once)
    assert isinstance(displays.choose(plain=False, silent=True, verbose=True, environment={}), SilentDisplay)
    assert isinstance(displays.choose(plain=True, verbose=True, environment={}), PlainDisplay)


def test_without_ipython_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook.in_kernel()
    assert "IPython" not in sys.modules, "nobody pays for it who has no kernel"


def test_ipython_shows_one_output_and_updates_it() -> None:
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        publisher = shell.display_pub = CapturingDisplayPublisher()
        output = CellOutput()
        output.draw("<b>one</b>", "one")
        output.draw("<b>two</b>", "two")
        first, second = publisher.outputs
    finally:
        InteractiveShell.clear_instance()
    assert (first["update"], second["update"]) == (False, True)
    assert first["transient"] == second["transient"] != {}
    assert second["data"] == {"text/html": "<b>two</b>", "text/plain": "two"}
