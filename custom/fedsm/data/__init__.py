"""A site's folder of images and masks, and what training sees of it."""
