"""Four hospitals learn to tell heart disease; one of them lies."""
