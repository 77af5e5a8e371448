"""Into and out of quantkit: export from frameworks, view, serve, package."""
