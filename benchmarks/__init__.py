"""What Holdfast costs, measured against one raw insert and commit on the same disk: `python -m benchmarks`."""
