"""Attestations and signatures of images, and the signers that a project trusts."""
