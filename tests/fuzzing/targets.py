"""All fuzzing targets by name."""

from __future__ import annotations

from tests.fuzzing import (
    format_targets,
    metadata_targets,
    option_targets,
    pulsar_targets,
    security_targets,
    session_targets,
    wire_targets,
)
from tests.fuzzing.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *wire_targets.TARGETS,
        *metadata_targets.TARGETS,
        *format_targets.TARGETS,
        *option_targets.TARGETS,
        *session_targets.TARGETS,
        *pulsar_targets.TARGETS,
        *security_targets.TARGETS,
    )
}
