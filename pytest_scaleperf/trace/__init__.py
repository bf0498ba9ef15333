"""Kineto traces: is training bound by computation, and if not, which communication is exposed, where, and by how much."""
