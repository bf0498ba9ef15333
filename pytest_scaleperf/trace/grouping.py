"""Which events are alike in several columns."""

from __future__ import annotations

import numpy as np

from pytest_scaleperf.trace.columns import Ints


def alike(*columns: Ints) -> tuple[Ints, Ints]:
    """One place of each distinct combination of values (-1 or larger), and the combination's number for each place.

    The values are packed into one int64, which sorts ten times as fast as rows do.
    """
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        key = key * (int(column.max(initial=-1)) + 2) + column + 1
    _, place, number = np.unique(key, return_index=True, return_inverse=True)
    return place, number
