"""Archives: records of topics as Parquet on any file store, which bounded runs read before what brokers still have."""
