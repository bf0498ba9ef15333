"""Options, hooks, fixtures and terminal lines: the only room that imports pytest."""
