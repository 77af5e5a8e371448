"""Pictures of a result, as SVG that the page holds inline: a scatter, rows of whiskers, and bars."""
