"""The commands of the embedded cluster: apiserver, dev and demo. The core finds them by their entry points."""
