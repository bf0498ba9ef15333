"""All that knows torchtitan: its flags, its logs, its event files, and the code that runs inside its jobs."""
