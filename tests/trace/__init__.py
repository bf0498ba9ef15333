"""Tests of the trace room."""
