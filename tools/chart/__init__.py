"""The Helm chart: its templates and its schema are written from the code that prints the plain manifests."""
