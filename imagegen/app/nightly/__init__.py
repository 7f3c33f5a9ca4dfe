"""Nightly updates: propose newer versions, explain rejected ones, publish images that pass smoke tests."""
