"""One process: its control plane and how that is assembled, its terms of leadership, its start and end."""
