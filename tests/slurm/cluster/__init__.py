"""A real Slurm of virtual nodes on one machine, for the tests and for trying things by hand."""

from tests.slurm.cluster.control import Cluster, MissingError
from tests.slurm.cluster.files import Shape

__all__ = ["Cluster", "MissingError", "Shape"]
