"""Payload formats: the contents of an entry. One module per format; `registry` finds it by name.

`decoding` and `encoding` define the two sides; all of it works on Arrow batches and knows nothing of Spark.
"""
