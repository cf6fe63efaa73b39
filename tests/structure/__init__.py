"""Measures the structure of the product: sizes, imports, and how many hops a request makes."""
