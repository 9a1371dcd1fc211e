"""Label a folder of images in the browser: the log of labels, the server of the page, what to label next, and which
labels may be wrong. The server needs no torch; the programs it starts do."""
