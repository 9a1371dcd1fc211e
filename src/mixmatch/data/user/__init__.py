"""User data: a folder of images, arrays or a table."""
