"""Writes families as Prometheus text (version 0.0.4), in the form of Apache's bookies. Pure.

prometheus_client writes counters only as `name_total`, and summaries without quantiles. So it cannot serve the names
that the dashboards of BookKeeper and Pulsar read. The tests read this text with its parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from bookie_service.metrics.families import QUANTILES, Family, Labels, Operation, Stage, Value, stage_samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Iterable[Family]) -> Iterator[str]:
    """Yield the text of each family: several lines, each with its end. Each name has one `# TYPE` line."""
    for family in families:
        help_text = f"# HELP {family.name} {family.text}\n" if family.text else ""
        lines = [f"{help_text}# TYPE {family.name} {family.kind}\n"]
        for sample in family.samples:
            match sample:
                case Value():
                    lines.append(_line(family.name, sample))
                case Operation():
                    lines += _operation(family.name, sample)
                case Stage():
                    lines += (_line(family.name, value) for value in stage_samples(sample))
        yield "".join(lines)


def _line(name: str, sample: Value) -> str:
    return f"{name}{sample.suffix}{_braces(sample.labels)} {_number(sample.value)}\n"


def _operation(name: str, operation: Operation) -> Iterator[str]:
    own = _pairs(operation.labels)
    after = f", {own}" if own else ""
    for success, recorded in (("false", operation.failed), ("true", operation.succeeded)):
        values = [math.nan] * len(QUANTILES)
        count = total = 0
        if recorded is not None:
            histograms, which = recorded
            values = histograms.quantiles(which, QUANTILES)
            count, total = histograms.count(which), histograms.sum(which)
        for share, value in zip(QUANTILES, values):
            yield f'{name}{{success="{success}",quantile="{share}"{after}}} {_number(value / operation.unit)}\n'
        yield f'{name}_count{{success="{success}"{after}}} {count}\n'
        yield f'{name}_sum{{success="{success}"{after}}} {_number(total / operation.unit)}\n'


def _braces(labels: Labels) -> str:
    return f"{{{_pairs(labels)}}}" if labels else ""


def _pairs(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
