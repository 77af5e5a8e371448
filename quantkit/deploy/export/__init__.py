"""From a framework's model to a file that is proved to compute the same.

source -> open_source -> (torch_module | torch_files | estimators | tensorflow) -> tidy -> prove

The one room that imports frameworks, and only inside of functions.
"""
