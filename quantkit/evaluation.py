"""Evaluation, in order: load, run on the same samples, measure, judge, write."""
