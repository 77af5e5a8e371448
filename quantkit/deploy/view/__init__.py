"""A model as a picture: layers as boxes, groups by name scope, with what is known of each; as one page, or as overlays for Model Explorer."""
