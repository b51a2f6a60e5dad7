"""`make image`: the context of deploy/Containerfile, its list of packages (SBOM), and the image."""
