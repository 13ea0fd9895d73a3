import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** Operations of tables, joins of tables, cogroup. */
final class Tables {

    private Tables() { }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        operations(twins);
        groups(twins);
        joins(twins);
        cogroup(twins);
        foreignKeys(twins);
        return twins;
    }

    private static KTable<String, String> table(StreamsBuilder builder, String topic) {
        return builder.table(topic, Consumed.with(Serdes.String(), Serdes.String()));
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> stored(String name) {
        return Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
    }

    private static boolean isLong(String key, String value) {
        return value.length() > 2;
    }

    private static KeyValue<String, String> byFirst(String key, String value) {
        return KeyValue.pair(Streams.first(value), Streams.both(key, value));
    }

    private static void operations(Map<String, Oracle.Twin> twins) {
        twins.put("table_filter", (builder, said) -> table(builder, "in").filter(Tables::isLong).toStream().to("out"));
        twins.put("table_filter_stored", (builder, said) -> table(builder, "in")
                .filter(Tables::isLong, stored("kept")).toStream().to("out"));
        twins.put("table_filter_not_named", (builder, said) -> table(builder, "in")
                .filterNot(Tables::isLong, Named.as("short")).toStream().to("out"));
        twins.put("table_map_values", (builder, said) -> table(builder, "in")
                .mapValues(v -> Streams.size(v)).toStream().to("out"));
        twins.put("table_map_values_stored", (builder, said) -> table(builder, "in")
                .mapValues((k, v) -> Streams.both(k, v), Named.as("mapped"), stored("kept")).toStream().to("out"));
        twins.put("table_map_values_with_serdes", (builder, said) -> table(builder, "in")
                .mapValues(v -> Streams.size(v), Materialized.with(Serdes.String(), Serdes.String())).toStream().to("out"));
        twins.put("table_chain", (builder, said) -> table(builder, "in")
                .mapValues(v -> v + "!").filter(Tables::isLong).mapValues(v -> Streams.first(v)).toStream().to("out"));
        twins.put("table_to_stream_by_value", (builder, said) -> table(builder, "in")
                .toStream((k, v) -> Streams.first(v)).to("out"));
        twins.put("stream_joined_with_a_filtered_table", (builder, said) -> Streams.strings(builder)
                .leftJoin(table(builder, "table").filter(Tables::isLong).mapValues(v -> Streams.size(v)), Streams::both)
                .to("out"));
        twins.put("counts_filtered_and_mapped", (builder, said) -> Streams.strings(builder)
                .groupByKey().count(Materialized.as("counts"))
                .filter((k, v) -> v % 2 == 0)
                .mapValues(v -> "n" + v)
                .toStream().to("out"));
    }

    private static void groups(Map<String, Oracle.Twin> twins) {
        twins.put("table_group_by_count", (builder, said) -> table(builder, "in")
                .groupBy(Tables::byFirst).count().toStream().to("out"));
        twins.put("table_group_by_reduce", (builder, said) -> table(builder, "in")
                .groupBy((k, v) -> KeyValue.pair(Streams.first(v), v), Grouped.as("grouped"))
                .reduce((left, right) -> left + "+" + right, (left, right) -> left + "-" + right, Materialized.as("texts"))
                .toStream().to("out"));
        twins.put("table_group_by_aggregate", (builder, said) -> table(builder, "in")
                .groupBy(Tables::byFirst, Grouped.with(Serdes.String(), Serdes.String()))
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + "+" + v,
                        (k, v, aggregate) -> aggregate.length() > 20 ? null : aggregate + "-" + v,
                        Named.as("sums"), stored("sums-store"))
                .toStream().to("out"));
        twins.put("table_filtered_group_by_count", (builder, said) -> table(builder, "in")
                .filter(Tables::isLong)
                .groupBy((k, v) -> v.length() > 3 ? KeyValue.pair(null, v) : byFirst(k, v))
                .count(Materialized.as("counts")).toStream().to("out"));
        twins.put("table_grouped_twice", (builder, said) -> {
            KTable<String, String> table = table(builder, "in");
            table.groupBy(Tables::byFirst).count().toStream().to("out");
            table.mapValues(v -> Streams.size(v)).groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().to("second");
        });
        twins.put("counts_counted", (builder, said) -> Streams.strings(builder)
                .groupByKey().count()
                .groupBy((k, v) -> KeyValue.pair(String.valueOf(v % 3), v), Grouped.with(Serdes.String(), Serdes.Long()))
                .reduce(Long::sum, (left, right) -> left - right)
                .toStream().to("out"));
    }

    private static void joins(Map<String, Oracle.Twin> twins) {
        twins.put("table_join", (builder, said) -> table(builder, "in")
                .join(table(builder, "other"), Streams::both).toStream().to("out"));
        twins.put("table_left_join", (builder, said) -> table(builder, "in")
                .leftJoin(table(builder, "other"), Streams::both).toStream().to("out"));
        twins.put("table_outer_join", (builder, said) -> table(builder, "in")
                .outerJoin(table(builder, "other"), Streams::both).toStream().to("out"));
        twins.put("table_join_stored", (builder, said) -> table(builder, "in")
                .join(table(builder, "other"), Streams::both, stored("pairs")).toStream().to("out"));
        twins.put("table_left_join_named", (builder, said) -> table(builder, "in")
                .leftJoin(table(builder, "other"), Streams::both, Named.as("met"), stored("pairs")).toStream().to("out"));
        twins.put("table_outer_join_with_serdes", (builder, said) -> table(builder, "in")
                .outerJoin(table(builder, "other"), Streams::both, Materialized.with(Serdes.String(), Serdes.String()))
                .toStream().to("out"));
        twins.put("three_tables", (builder, said) -> table(builder, "in")
                .join(table(builder, "other"), Streams::both)
                .outerJoin(table(builder, "third"), Streams::both).toStream().to("out"));
        twins.put("filtered_tables_joined_and_grouped", (builder, said) -> table(builder, "in").filter(Tables::isLong)
                .leftJoin(table(builder, "other").mapValues(v -> Streams.first(v)), Streams::both)
                .groupBy((k, v) -> KeyValue.pair(v.substring(v.length() - 1), v), Grouped.with(Serdes.String(), Serdes.String()))
                .count().toStream().to("out"));
        twins.put("counts_joined", (builder, said) -> {
            KTable<String, Long> left = Streams.strings(builder).groupByKey().count();
            KTable<String, Long> right = builder.stream("other", Consumed.with(Serdes.String(), Serdes.String()))
                    .groupByKey().count();
            left.outerJoin(right, Streams::both).toStream().to("out");
        });
        twins.put("stream_joined_with_joined_tables", (builder, said) -> Streams.strings(builder)
                .leftJoin(table(builder, "table").outerJoin(table(builder, "other"), Streams::both), Streams::both)
                .to("out"));
    }

    private static void cogroup(Map<String, Oracle.Twin> twins) {
        twins.put("cogroup", (builder, said) -> {
            KGroupedStream<String, String> one = Streams.strings(builder).groupByKey();
            KGroupedStream<String, String> two = builder
                    .stream("other", Consumed.with(Serdes.String(), Serdes.String())).groupByKey();
            one.<String>cogroup((k, v, aggregate) -> aggregate + "1" + v)
                    .cogroup(two, (k, v, aggregate) -> aggregate + "2" + v)
                    .aggregate(() -> "", Materialized.with(Serdes.String(), Serdes.String()))
                    .toStream().to("out");
        });
        twins.put("cogroup_named_repartition", (builder, said) -> {
            KGroupedStream<String, String> one = Streams.strings(builder)
                    .groupBy((k, v) -> Streams.first(v), Grouped.with(Serdes.String(), Serdes.String()));
            KGroupedStream<String, String> two = builder
                    .stream("other", Consumed.with(Serdes.String(), Serdes.String()))
                    .groupBy((k, v) -> Streams.first(v), Grouped.with("second", Serdes.String(), Serdes.String()));
            one.<String>cogroup((k, v, aggregate) -> aggregate + "1")
                    .cogroup(two, (k, v, aggregate) -> aggregate.length() > 5 ? null : aggregate + "2")
                    .aggregate(() -> "", Named.as("all"), stored("together"))
                    .toStream().to("out");
        });
        twins.put("cogroup_windowed", (builder, said) -> {
            KGroupedStream<String, String> one = Streams.strings(builder).groupByKey();
            KGroupedStream<String, String> two = builder
                    .stream("other", Consumed.with(Serdes.String(), Serdes.String())).groupByKey();
            one.<String>cogroup((k, v, aggregate) -> aggregate + "1" + Streams.first(v))
                    .cogroup(two, (k, v, aggregate) -> aggregate + "2" + Streams.first(v))
                    .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(30)))
                    .aggregate(() -> "", Materialized.<String, String, WindowStore<Bytes, byte[]>>with(
                            Serdes.String(), Serdes.String()).withRetention(Duration.ofMinutes(10)))
                    .toStream().to("out");
        });
    }

    private static String foreignKey(String value) {
        return value.length() > 3 ? null : Streams.first(value);
    }

    private static void foreignKeys(Map<String, Oracle.Twin> twins) {
        twins.put("foreign_key_join", (builder, said) -> table(builder, "in")
                .join(table(builder, "other"), Tables::foreignKey, Streams::both,
                        Materialized.with(Serdes.String(), Serdes.String()))
                .toStream().to("out"));
        twins.put("foreign_key_left_join", (builder, said) -> table(builder, "in")
                .leftJoin(table(builder, "other"), Tables::foreignKey, Streams::both,
                        Materialized.with(Serdes.String(), Serdes.String()))
                .toStream().to("out"));
        twins.put("foreign_key_join_named", (builder, said) -> table(builder, "in")
                .join(table(builder, "other"), Tables::foreignKey, Streams::both, TableJoined.as("linked"), stored("links"))
                .toStream().to("out"));
        twins.put("foreign_key_left_join_then_count", (builder, said) -> table(builder, "in")
                .leftJoin(table(builder, "other"), Streams::first, Streams::both, stored("links"))
                .groupBy((k, v) -> KeyValue.pair(Streams.size(v), v), Grouped.with(Serdes.String(), Serdes.String()))
                .count().toStream().to("out"));
    }
}
