"""The smallest app that learns, for tests of real processes."""
