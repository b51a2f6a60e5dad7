"""What the restructuring of the code is judged by: `python -m tools.measure`."""
