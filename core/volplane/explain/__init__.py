"""Explain claims, volumes, classes, attachments and pods: what the controllers would decide, in words."""
