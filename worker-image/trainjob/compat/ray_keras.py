"""`ray.train.tensorflow.keras`: Ray's name for the callback of `trainjob.integrations.keras`."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Union

from trainjob.integrations import keras as ours
from trainjob.session import calls

_EVENTS = (
    *("epoch_begin", "epoch_end", "train_begin", "train_end", "train_batch_begin", "train_batch_end"),
    *("test_begin", "test_end", "test_batch_begin", "test_batch_end"),
    *("predict_begin", "predict_end", "predict_batch_begin", "predict_batch_end"),
)
Events = Union[str, List[str]]


class ReportCheckpointCallback(ours.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports at the events that are named, as Ray has it: the metrics (all, or those of `metrics`, a name, a list, or
    a dict from what is reported to what Keras calls it), and at `checkpoint_on` the model with them.

    `trainjob.keras.load` resumes from it, at the epoch after the last one that had ended.
    """

    CHECKPOINT_NAME = ours.FILE

    def __init__(
        self,
        checkpoint_on: Events = "epoch_end",
        report_metrics_on: Events = "epoch_end",
        metrics: Union[str, List[str], Mapping[str, str], None] = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on, self._report_on = _listed(checkpoint_on), _listed(report_metrics_on)
        for event in (*self._checkpoint_on, *self._report_on):
            if event not in _EVENTS:
                raise ValueError(f"ReportCheckpointCallback: {event!r} is no event of Keras: give one of {_EVENTS}")
        self._names = metrics if isinstance(metrics, Mapping) else {name: name for name in _listed(metrics or [])}
        self._epochs = 0

    def happened(self, event: str, logs: Any) -> None:
        """All ranks, at each event of Keras."""
        if event in self._checkpoint_on:
            ours.report_with(self.model, self._metrics(logs), self._epochs)
        elif event in self._report_on:
            calls.report(self._metrics(logs))

    def _metrics(self, logs: Any) -> Dict[str, float]:
        found = ours.numbers(logs)
        return {told: found[name] for told, name in self._names.items()} if self._names else found


def _listed(given: Events) -> List[str]:
    return [given] if isinstance(given, str) else list(given)


def _hook(event: str) -> Callable[..., None]:
    def hook(self: ReportCheckpointCallback, *arguments: Any, logs: Any = None) -> None:
        numbered = event.startswith("epoch") or "_batch_" in event
        if event.startswith("epoch"):
            self._epochs = int(arguments[0]) + (event == "epoch_end")
        given = arguments[1:] if numbered else arguments
        self.happened(event, given[0] if given else logs)

    return hook


for _event in _EVENTS:
    setattr(ReportCheckpointCallback, f"on_{_event}", _hook(_event))
