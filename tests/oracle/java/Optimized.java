import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Topologies that `topology.optimization` changes; all are built with `all`. */
final class Optimized {

    private Optimized() { }

    private static final Produced<String, Long> COUNTS = Produced.with(Serdes.String(), Serdes.Long());

    private static KStream<String, String> rekeyed(StreamsBuilder builder, String topic) {
        return builder.<String, String>stream(topic).filter((k, v) -> v != null).selectKey((k, v) -> Streams.first(v));
    }

    private static JoinWindows within(long ms) {
        return JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(ms), Duration.ofMillis(ms));
    }

    private static StreamJoined<String, String, String> joined() {
        return StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
    }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        repartitions(twins);
        selfJoins(twins);
        tables(twins);
        return twins;
    }

    private static void repartitions(Map<String, Oracle.Twin> twins) {
        twins.put("optimized_aggregations", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.groupByKey().count().toStream().to("counts", COUNTS);
            stream.filter((k, v) -> v.length() > 1).groupByKey().reduce((left, right) -> left + right)
                    .toStream().to("out");
            stream.to("copy");
        });
        twins.put("optimized_aggregations_named", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.groupByKey(Grouped.as("first")).count(Materialized.as("counted")).toStream().to("counts", COUNTS);
            stream.groupByKey(Grouped.as("second")).reduce((left, right) -> right).toStream().to("out");
        });
        twins.put("optimized_with_values_changed", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.mapValues(v -> Streams.size(v)).groupByKey().reduce((left, right) -> left + right)
                    .toStream().to("sizes");
            stream.groupByKey().count().toStream().to("counts", COUNTS);
            stream.peek((k, v) -> said.add(v)).groupByKey()
                    .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(100)))
                    .reduce((left, right) -> right).toStream((k, v) -> Streams.flat(k)).to("out");
        });
        twins.put("optimized_merge", (builder, said) -> {
            KStream<String, String> merged = rekeyed(builder, "in").merge(rekeyed(builder, "other"));
            merged.groupByKey().count().toStream().to("counts", COUNTS);
            merged.filter((k, v) -> true).groupByKey().reduce((left, right) -> right).toStream().to("out");
        });
        twins.put("optimized_table_joins", (builder, said) -> {
            KTable<String, String> table = builder.table("table");
            KStream<String, String> stream = builder.<String, String>stream("in")
                    .map((k, v) -> KeyValue.pair("a".equals(k) ? null : Streams.first(v), v == null ? "x" : v));
            stream.leftJoin(table, Streams::both, Joined.as("lookup")).to("out");
            stream.join(table, Streams::both).to("second");
            stream.groupByKey().count().toStream().to("counts", COUNTS);
        });
        twins.put("optimized_stream_join", (builder, said) -> {
            KStream<String, String> left = rekeyed(builder, "in");
            KStream<String, String> right = rekeyed(builder, "other");
            left.join(right, Streams::both, within(40), joined()).to("out");
            left.groupByKey().count().toStream().to("counts", COUNTS);
            right.toTable(Named.as("latest"), Materialized.as("kept")).toStream().to("second");
        });
        twins.put("optimized_cogroup", (builder, said) -> {
            KStream<String, String> left = rekeyed(builder, "in");
            KGroupedStream<String, String> right = rekeyed(builder, "other").groupByKey(Grouped.as("right"));
            left.groupByKey().<String>cogroup((k, v, aggregate) -> aggregate + v)
                    .cogroup(right, (k, v, aggregate) -> v + aggregate)
                    .aggregate(() -> "").toStream().to("out");
            left.groupByKey().count().toStream().to("counts", COUNTS);
        });
        twins.put("optimized_two_changes", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.groupByKey().count().toStream().to("counts", COUNTS);
            KStream<String, String> again = stream.selectKey((k, v) -> String.valueOf(v.length()));
            again.groupByKey().count().toStream().to("second", COUNTS);
            again.groupByKey().reduce((left, right) -> right).toStream().to("out");
            stream.groupBy((k, v) -> v, Grouped.as("by-value")).count().toStream().to("third", COUNTS);
        });
        twins.put("optimized_explicit_repartition", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.repartition(Repartitioned.as("wanted")).to("out");
            stream.groupByKey().count().toStream().to("counts", COUNTS);
            stream.repartition().groupByKey().count().toStream().to("second", COUNTS);
        });
    }

    private static void selfJoins(Map<String, Oracle.Twin> twins) {
        twins.put("optimized_self_join", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            stream.join(stream, Streams::both, within(50), joined()).to("out");
        });
        twins.put("optimized_self_join_same_topic", (builder, said) -> builder.<String, String>stream("in")
                .join(builder.<String, String>stream("in"), Streams::both,
                        within(40).before(Duration.ofMillis(20)).after(Duration.ofMillis(60)), joined().withName("self"))
                .to("out"));
        twins.put("optimized_self_left_join", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            stream.leftJoin(stream, Streams::both, within(30), joined().withStoreName("kept")).to("out");
        });
        twins.put("optimized_self_join_repartition", (builder, said) -> {
            KStream<String, String> stream = rekeyed(builder, "in");
            stream.join(stream, Streams::both, within(30), joined().withName("self")).to("out");
        });
        twins.put("optimized_no_self_join", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            stream.join(stream.filter((k, v) -> true), Streams::both, within(30), joined()).to("out");
            stream.outerJoin(stream, Streams::both, within(30), joined().withName("self")).to("second");
        });
    }

    private static void tables(Map<String, Oracle.Twin> twins) {
        twins.put("optimized_table", (builder, said) -> builder.<String, String>table("in", Materialized.as("kept"))
                .filter((k, v) -> v.length() > 1).toStream().to("out"));
        twins.put("optimized_tables_joined", (builder, said) -> builder.<String, String>table("in")
                .leftJoin(builder.<String, String>table("other"), Streams::both)
                .toStream().to("out"));
        twins.put("optimized_table_grouped", (builder, said) -> builder.<String, String>table("in")
                .groupBy((k, v) -> KeyValue.pair(Streams.first(v), v)).count().toStream().to("counts", COUNTS));
    }
}
