"""ksqlDB's language as topologies: statements become calls of the DSL."""
