"""Pictures of a report, with matplotlib: SVG for the page, PNG beside it."""
