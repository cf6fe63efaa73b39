"""Limits for bookies of tests, whose disk other programs share: how full it is says nothing about the bookie."""

from __future__ import annotations

from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.storage.disks import DiskLimits

ROOMY = DiskLimits(full_share=0.999, warn_share=0.999, low_share=0.999)
ROOMY_DISKS = DiskOptions(limits=ROOMY)
