"""What the entry does inside a job: imports torch and torchtitan, and is imported by nothing but `titan/entry.py`.

Only the standard library, torch and torchtitan are needed here, so that a job's environment may hold this
package alone (`pip install --no-deps pytest-scaleperf`).
"""
