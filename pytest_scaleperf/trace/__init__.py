"""Kineto traces: is training bound by computation, and if not, which communication is exposed, and by how much."""
