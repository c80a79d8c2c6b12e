"""Handwritten digits, learnt by nodes of which some lie."""
