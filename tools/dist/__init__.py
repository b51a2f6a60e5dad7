"""`make dist`: what is released, as files with their checksums; `make release-check`: whether it may be."""
