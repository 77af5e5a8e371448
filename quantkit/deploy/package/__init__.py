"""A folder to build an image from that serves a model, or the folder that another server reads.

From the bottom: `folder` (digests, and whether a folder is ours), `lock` (packages with hashes), `facts` (the data of all
texts), `server_files` (the modules that a server needs), `smoke` (the script of that name, copied as it is), `sample` (its
request and the answer), `stage` (models and settings) and `texts` (templates: Dockerfile, manifests, README.md, config.pbtxt;
and the SBOM). `quantkit.api.package` puts them together.

The same inputs give the same bytes. Names that users choose are in commands and manifests only as `facts.slug` makes them.
"""
