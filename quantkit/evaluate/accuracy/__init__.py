"""What became of the answers: metrics with intervals, drift, flips, slices. `quantkit.evaluate.answers` runs it."""
