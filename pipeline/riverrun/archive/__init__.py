"""Archives: the records of topics in Parquet on any file store, which bounded runs read in front of what brokers still have."""
