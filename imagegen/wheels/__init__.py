"""Wheels that no index serves: finding one that fits a cell, storing built wheels, planning a build's memory."""
