"""``scaleperf rehearse``: cases of any size on the devices of this machine, without pytest.

``command`` is the command, ``select`` reads the expression of ``-k``.
"""
