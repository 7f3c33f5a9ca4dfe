"""Newer versions, night by night: propose, explain, and build what holds."""
