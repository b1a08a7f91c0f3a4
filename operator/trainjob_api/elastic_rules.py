"""Sizes of an elastic job: what is wrong with them, in words. The CRD's rules (`cel.py`) say the same.

Called by `validation.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainjob_api import defaults
from trainjob_api.problems import ABSENT, Problem
from trainjob_api.v1alpha1 import TrainJobSpec


def elastic_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    """Everything about spec.elastic that cannot work."""
    elastic, wished = spec.elastic, spec.workers
    if elastic is None:
        return
    field, least, most = "spec.elastic", elastic.min_workers, elastic.max_workers
    if not defaults.uses_agent(spec):
        yield Problem(
            field,
            elastic.to_json(),
            "must be left out with spec.runtime.agent: Disabled: without the agent nobody tells when a group of "
            "another size may begin",
        )
    if least > most:
        yield Problem(f"{field}.minWorkers", least, f"must be at most maxWorkers, which is {most}")
        return
    for at, size in enumerate(elastic.allowed_sizes):
        if not least <= size <= most:
            yield Problem(
                f"{field}.allowedSizes[{at}]", size, f"must be from minWorkers to maxWorkers, {least} to {most}"
            )
    if "workers" not in spec.model_fields_set:
        yield Problem(
            "spec.workers",
            ABSENT,
            f"is required with spec.elastic: the wished number of workers, usually maxWorkers, which is {most}",
        )
    elif not least <= wished <= most:
        yield Problem(
            "spec.workers",
            wished,
            f"must be from spec.elastic.minWorkers to maxWorkers, {least} to {most}: it is the wished number",
        )
    elif elastic.allowed_sizes and wished not in elastic.allowed_sizes:
        listed = ", ".join(str(size) for size in sorted(elastic.allowed_sizes))
        yield Problem("spec.workers", wished, f"must be one of spec.elastic.allowedSizes, {listed}")
