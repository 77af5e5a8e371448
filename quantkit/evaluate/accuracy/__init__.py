"""What became of the answers: metrics with intervals, drift, flips, slices. `quantkit.evaluate.outputs` runs it."""
