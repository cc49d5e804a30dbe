"""The archive of Parquet files in a folder or a bucket. Needs the extra ``parquet``."""
