"""The pipeline: PySpark moves and shapes the data, and calls the same kernels on the executors."""
