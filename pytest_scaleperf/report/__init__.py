"""Verdicts and records as text that people and CI read; computes nothing new."""
