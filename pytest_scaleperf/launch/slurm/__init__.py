"""Jobs on a Slurm cluster, over its own commands: as steps of an allocation, or as jobs of their own."""
