"""Performance regression tests for torchtitan, from 16 GPUs to 512."""

__version__ = "0.1.0"
