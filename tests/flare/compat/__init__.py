"""FLARE without our workarounds: each test fails once FLARE no longer needs the one that it is named after."""
