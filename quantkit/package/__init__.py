"""A folder to build an image from, in which a model is served; or the folder that another server wants.

From the bottom: `facts` (what all files tell of), `folder` (whose is it, and how it is replaced as a whole), `lock` (which
packages, with hashes), `server_files` (which modules a server needs), `smoke` (the script of that name, as it is), `sample`
(what it sends, and the answer), `docker`, `manifests`, `triton`, `sbom`, `readme` (one text each, made of facts).
`quantkit.workflows.package` puts them together.

The same inputs give the same bytes. Names that come from users stand in commands and manifests only as `facts.slug` makes
them.
"""
