"""Each line once, by the times that the kubelet writes."""

from __future__ import annotations

from trainjob.launch.cluster.pod_log import Once, moment


def test_times_compare_as_text_whatever_zeros_were_left_out() -> None:
    stamps = ["2026-01-01T12:00:00Z", "2026-01-01T12:00:00.5Z", "2026-01-01T12:00:00.51Z", "2026-01-01T12:00:01Z"]
    moments = [moment(stamp) for stamp in stamps]
    assert moments == sorted(moments)
    assert len(set(moments)) == 4
    assert moment("no time") == moment("2026-01-01T12:00:00+01:00") == ""


def test_a_second_reading_gives_only_what_is_new() -> None:
    once = Once()
    assert once.begin() is None
    assert once.text("2026-01-01T12:00:00.1Z a") == "a"
    assert once.text("2026-01-01T12:00:00.1Z twin of a") == "twin of a"
    assert once.begin() == "2026-01-01T12:00:00Z"
    assert once.text("2026-01-01T12:00:00.1Z a") is None
    assert once.text("2026-01-01T12:00:00.11Z b") == "b"


def test_a_line_without_a_time_is_shown_as_it_is() -> None:
    assert Once().text("unable to retrieve container logs") == "unable to retrieve container logs"
