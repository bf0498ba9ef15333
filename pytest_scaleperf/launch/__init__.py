"""Starting, watching and ending jobs: on this machine, and on a cluster."""
