"""Nightly updates: propose newer versions, explain the rejected ones, build and publish what passes its smoke tests."""
