"""Runs at a URL: trained in a local copy, mirrored while they train, resumed from any machine."""
