"""What is in a model: its facts for the planner, its weights, its size."""
