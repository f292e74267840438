"""The record of one cell, and its three forms: text, static HTML and widget."""
