"""Publish and verify: attestations, signatures, tags, comparison, mirrors and report pages."""
