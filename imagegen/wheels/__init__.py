"""Wheels that no index serves: finding one that fits a cell, keeping what was built, planning a build's memory."""
