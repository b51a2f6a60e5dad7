"""The commands of the testing kit: check, sim and new-backend. The core finds them by their entry points."""
