"""Does a model come from where it says it does?"""
