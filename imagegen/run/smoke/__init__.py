"""Smoke tests of images: the checks in a container, their report, and the reports that are kept."""
