"""Exports of NFS-Ganesha: their configuration, their identifiers, and the D-Bus of the server."""
