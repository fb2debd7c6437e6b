"""Which network segments an image: descriptors, Gaussian classes, trained selectors, Algorithm 2."""
