"""A smaller vocabulary: which tokens a corpus needs, and a model and a tokenizer that have no others.

`pieces` closes a set of tokens under what a tokenizer's algorithm needs, `corpus` counts tokens and estimates coverage, `uses` finds the
tables and heads of a graph, `rows` takes rows out of constants, `graph` writes the smaller graph, `files` the files beside it.
"""
