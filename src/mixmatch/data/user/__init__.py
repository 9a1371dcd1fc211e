"""A user's own data: a folder of images, arrays or a table."""
