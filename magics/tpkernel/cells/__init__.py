"""A cell's text, read: front matter and signatures become the spec of its operators."""
