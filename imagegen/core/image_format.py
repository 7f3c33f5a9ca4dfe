"""Constants of the format of images."""

from __future__ import annotations

# 1980-01-01, the oldest date that zip files can hold, so zipping a tree from an image works. It is part of the formats
# of layers and bases: a SOURCE_DATE_EPOCH that moves would change all layers at each relock.
EPOCH = 315532800

PREFIX = "/opt/venv"  # the environment: wheels, and their data, are installed there
