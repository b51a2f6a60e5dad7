"""In-use protection: the two finalizers that keep claims and volumes while somebody uses them."""
