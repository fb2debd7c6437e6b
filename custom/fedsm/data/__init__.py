"""From a site's folder of images and masks to the data that training sees."""
