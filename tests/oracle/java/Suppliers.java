import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionBytesStoreSupplier;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;
import org.apache.kafka.streams.state.WindowStore;

/** Stores that the user supplies, instead of naming them. */
final class Suppliers {

    private Suppliers() { }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        tables(twins);
        aggregates(twins);
        windows(twins);
        sessions(twins);
        cogroups(twins);
        joins(twins);
        return twins;
    }

    private static Duration ms(long count) {
        return Duration.ofMillis(count);
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> rows(KeyValueBytesStoreSupplier supplier) {
        return Materialized.<String, String>as(supplier).withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
    }

    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts(KeyValueBytesStoreSupplier supplier) {
        return Materialized.<String, Long>as(supplier).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
    }

    private static <V> Materialized<String, V, WindowStore<Bytes, byte[]>> windows(WindowBytesStoreSupplier supplier) {
        return Materialized.<String, V>as(supplier).withKeySerde(Serdes.String());
    }

    private static <V> Materialized<String, V, SessionStore<Bytes, byte[]>> sessions(SessionBytesStoreSupplier supplier) {
        return Materialized.<String, V>as(supplier).withKeySerde(Serdes.String());
    }

    private static KStream<String, String> other(StreamsBuilder builder) {
        return builder.stream("other");
    }

    private static KeyValue<String, String> byFirst(String key, String value) {
        return KeyValue.pair(Streams.first(value), Streams.both(key, value));
    }

    private static void tables(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_table_in_memory", (builder, said) -> builder
                .<String, String>table("in", rows(Stores.inMemoryKeyValueStore("kept")))
                .filter((k, v) -> v.length() > 2, rows(Stores.persistentTimestampedKeyValueStore("long")))
                .mapValues((k, v) -> Streams.both(k, v), Named.as("mapped"), rows(Stores.inMemoryKeyValueStore("pairs")))
                .toStream().to("out"));
        twins.put("supplied_table_least_recently_used", (builder, said) -> builder
                .<String, String>table("in", rows(Stores.lruMap("kept", 2)).withCachingDisabled()).toStream().to("out"));
        twins.put("supplied_table_without_times", (builder, said) -> builder
                .<String, String>table("in", rows(Stores.persistentKeyValueStore("kept"))).toStream().to("out"));
        twins.put("supplied_versioned_table", (builder, said) -> builder
                .<String, String>table("in", Materialized.<String, String>as(
                        Stores.persistentVersionedKeyValueStore("versions", ms(300))).withKeySerde(Serdes.String()))
                .filter((k, v) -> v.length() > 1)
                .groupBy((k, v) -> KeyValue.pair(Streams.first(v), v), Grouped.with(Serdes.String(), Serdes.String()))
                .count(counts(Stores.inMemoryKeyValueStore("counts"))).toStream().to("out"));
        twins.put("supplied_to_table_and_joined", (builder, said) -> Streams.strings(builder)
                .toTable(rows(Stores.inMemoryKeyValueStore("left")))
                .outerJoin(other(builder).toTable(rows(Stores.persistentTimestampedKeyValueStore("right"))),
                        Streams::both, rows(Stores.inMemoryKeyValueStore("pairs")))
                .toStream().to("out"));
        twins.put("supplied_foreign_key_join", (builder, said) -> builder
                .<String, String>table("in", rows(Stores.inMemoryKeyValueStore("left")))
                .leftJoin(builder.<String, String>table("other", rows(Stores.persistentTimestampedKeyValueStore("right"))),
                        Streams::first, Streams::both, rows(Stores.inMemoryKeyValueStore("links")))
                .toStream().to("out"));
    }

    private static void aggregates(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_count_least_recently_used", (builder, said) -> Streams.strings(builder)
                .groupByKey().count(counts(Stores.lruMap("counts", 2)).withCachingDisabled()).toStream().to("out"));
        twins.put("supplied_table_aggregates", (builder, said) -> {
            builder.<String, String>table("in", rows(Stores.inMemoryKeyValueStore("kept")))
                    .groupBy(Suppliers::byFirst, Grouped.with(Serdes.String(), Serdes.String()))
                    .aggregate(() -> "", (k, v, sum) -> sum + "+" + v,
                            (k, v, sum) -> sum.length() > 20 ? null : sum + "-" + v,
                            rows(Stores.persistentTimestampedKeyValueStore("sums")))
                    .toStream().to("out");
        });
        twins.put("supplied_aggregate_without_times", (builder, said) -> Streams.strings(builder)
                .groupByKey().aggregate(() -> "", (k, v, sum) -> sum.length() > 10 ? null : sum + v,
                        rows(Stores.persistentKeyValueStore("sums"))).toStream().to("out"));
    }

    private static void windows(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_windows", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50)))
                .count(Suppliers.<Long>windows(
                        Stores.persistentTimestampedWindowStore("counts", Duration.ofMinutes(10), ms(100), false)))
                .toStream().to("out"));
        twins.put("supplied_windows_in_memory", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(90), ms(500)).advanceBy(ms(30)))
                .reduce((left, right) -> left + right, Suppliers.<String>windows(
                        Stores.inMemoryWindowStore("texts", ms(700), ms(90), false)).withValueSerde(Serdes.String()))
                .toStream().to("out"));
        twins.put("supplied_windows_without_times", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50)))
                .count(Suppliers.<Long>windows(
                        Stores.persistentWindowStore("counts", Duration.ofMinutes(10), ms(100), false)))
                .toStream().to("out"));
        twins.put("supplied_sliding_windows", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(80)))
                .count(Suppliers.<Long>windows(
                        Stores.persistentTimestampedWindowStore("slid", Duration.ofMinutes(10), ms(50), false)))
                .toStream().to("out"));
        twins.put("supplied_windows_emit_on_close", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(Suppliers.<Long>windows(
                        Stores.inMemoryWindowStore("counts", Duration.ofMinutes(10), ms(100), false)))
                .toStream().to("out"));
    }

    private static void sessions(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_sessions", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(37)))
                .count(Suppliers.<Long>sessions(Stores.persistentSessionStore("visits", Duration.ofMinutes(10))))
                .toStream().to("out"));
        twins.put("supplied_sessions_in_memory", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(20), ms(200)))
                .reduce((left, right) -> left + right, Suppliers.<String>sessions(
                        Stores.inMemorySessionStore("visits", ms(600))).withValueSerde(Serdes.String()))
                .toStream().to("out"));
    }

    private static void cogroups(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_cogroup_windowed", (builder, said) -> {
            KGroupedStream<String, String> one = Streams.strings(builder).groupByKey();
            one.<String>cogroup((k, v, sum) -> sum + "1" + Streams.first(v))
                    .cogroup(other(builder).groupByKey(), (k, v, sum) -> sum + "2" + Streams.first(v))
                    .windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(30)))
                    .aggregate(() -> "", Suppliers.<String>windows(
                            Stores.inMemoryWindowStore("together", Duration.ofMinutes(10), ms(100), false))
                            .withValueSerde(Serdes.String()))
                    .toStream().to("out");
        });
    }

    private static StreamJoined<String, String, String> joined() {
        return StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
    }

    private static void joins(Map<String, Oracle.Twin> twins) {
        twins.put("supplied_stream_join", (builder, said) -> Streams.strings(builder)
                .join(other(builder), Streams::both, JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(100)),
                        joined().withThisStoreSupplier(Stores.persistentWindowStore("lefts", ms(180), ms(80), true))
                                .withOtherStoreSupplier(Stores.inMemoryWindowStore("rights", ms(180), ms(80), true)))
                .to("out"));
        twins.put("supplied_stream_left_join", (builder, said) -> Streams.strings(builder).filter((k, v) -> v != null)
                .leftJoin(other(builder).filter((k, v) -> v != null), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(20)),
                        joined().withThisStoreSupplier(Stores.inMemoryWindowStore("lefts", ms(120), ms(100), true))
                                .withOtherStoreSupplier(Stores.inMemoryWindowStore("rights", ms(120), ms(100), true))
                                .withName("meet"))
                .to("out"));
        twins.put("supplied_stream_outer_join_on_one_side", (builder, said) -> Streams.strings(builder)
                .outerJoin(other(builder), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(30)).before(ms(0)).after(ms(80)),
                        joined().withOtherStoreSupplier(Stores.persistentWindowStore("rights", ms(110), ms(80), true))
                                .withStoreName("kept"))
                .to("out"));
    }
}
