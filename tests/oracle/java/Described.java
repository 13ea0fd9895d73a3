import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Builds topologies from descriptions: the twin of `build` in `tests/oracle/random_topologies.py`, step by step. */
final class Described {

    private static final Serde<String> TEXT = Serdes.String();
    private final StreamsBuilder builder;
    private final List<Object> made = new ArrayList<>();

    private Described(StreamsBuilder builder) {
        this.builder = builder;
    }

    static void build(StreamsBuilder builder, JsonNode steps) {
        Described described = new Described(builder);
        Set<Integer> used = new HashSet<>();
        for (JsonNode step : steps) {
            described.made.add(described.step(step));
            step.path("of").forEach(number -> used.add(number.asInt()));
        }
        for (int number = 0; number < described.made.size(); number++) {
            if (!used.contains(number)) {
                described.sink(described.made.get(number), "out-" + number);
            }
        }
    }

    static String brief(String text) {
        return text.length() <= 8 ? text : text.substring(text.length() - 8);
    }

    static String pair(Object left, Object right) {
        return brief(String.valueOf((Object) left) + "+" + String.valueOf((Object) right));
    }

    static boolean passes(int number, String key, String value) {
        return switch (number) {
            case 0 -> value != null && value.length() % 2 == 0;
            case 1 -> !"a".equals(key);
            default -> value != null && value.compareTo("c") < 0;
        };
    }

    static String mapped(int number, String value) {
        return number == 0 ? brief(String.valueOf((Object) value) + "!") : Streams.first(value);
    }

    static String key(int number, String key, String value) {
        return switch (number) {
            case 0 -> Streams.first(value);
            case 1 -> key == null ? "-" : key;
            default -> value != null && value.startsWith("a") ? null : Streams.first(value);
        };
    }

    static String add(String key, String value, String known) {
        return known.length() > 6 ? null : known + Streams.first(value);
    }

    static String remove(String key, String value, String known) {
        return brief(known + "-" + Streams.first(value));
    }

    static String flat(Windowed<String> key) {
        return String.valueOf((Object) key.key()) + "@" + key.window().start() + "/" + key.window().end();
    }

    private void sink(Object made, String topic) {
        if (made instanceof KStream) {
            stream(made).to(topic, Produced.with(TEXT, TEXT));
        } else if (!(made instanceof GlobalKTable)) {
            asStream(made).to(topic, Produced.with(TEXT, TEXT));
        }
    }

    @SuppressWarnings("unchecked")
    private static KStream<String, String> stream(Object made) {
        return (KStream<String, String>) made;
    }

    @SuppressWarnings("unchecked")
    private static KTable<String, String> table(Object made) {
        return (KTable<String, String>) made;
    }

    /** Of a windowed table, too: keys become text. */
    private static KStream<String, String> asStream(Object made) {
        if (made instanceof Windows) {
            return ((Windows) made).table.toStream((key, value) -> flat(key)).mapValues(value -> value == null ? null : value.toString());
        }
        return table(made).toStream();
    }

    /** A windowed table, told apart from others. */
    private record Windows(KTable<Windowed<String>, Object> table) { }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> stored(JsonNode step) {
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> with = step.has("store")
                ? Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(step.get("store").asText()).withKeySerde(TEXT).withValueSerde(TEXT)
                : Materialized.with(TEXT, TEXT);
        return with;
    }

    private static Duration ms(JsonNode step, String name) {
        return Duration.ofMillis(step.get(name).asLong());
    }

    private Object in(JsonNode step, int number) {
        return made.get(step.get("of").get(number).asInt());
    }

    private Object step(JsonNode step) {
        int f = step.path("f").asInt();
        return switch (step.get("op").asText()) {
            case "stream" -> builder.stream(step.get("topic").asText());
            case "table" -> builder.table(step.get("topic").asText(), stored(step));
            case "versioned" -> builder.table(step.get("topic").asText(), Materialized.<String, String>as(
                    Stores.persistentVersionedKeyValueStore(step.get("store").asText(), ms(step, "history"))));
            case "global" -> builder.globalTable(step.get("topic").asText());
            case "filter" -> stream(in(step, 0)).filter((k, v) -> passes(f, k, v));
            case "filter_not" -> stream(in(step, 0)).filterNot((k, v) -> passes(f, k, v));
            case "map_values" -> stream(in(step, 0)).mapValues(v -> mapped(f, v));
            case "map" -> stream(in(step, 0)).map((k, v) -> KeyValue.pair(key(f, k, v), pair(k, v)));
            case "select_key" -> stream(in(step, 0)).selectKey((k, v) -> key(f, k, v));
            case "flat_map" -> stream(in(step, 0)).flatMap((k, v) -> List.of(KeyValue.pair(key(f, k, v), v), KeyValue.pair(k, pair(k, v))));
            case "flat_map_values" -> stream(in(step, 0)).flatMapValues(v -> v == null ? List.of() : List.of(v, Streams.first(v)));
            case "repartition" -> stream(in(step, 0)).repartition(step.has("name") ? Repartitioned.as(step.get("name").asText()) : Repartitioned.with(TEXT, TEXT));
            case "merge" -> stream(in(step, 0)).merge(stream(in(step, 1)));
            case "split" -> split(step, f);
            case "to_table" -> stream(in(step, 0)).toTable(stored(step));
            case "aggregate" -> aggregated(grouped(stream(in(step, 0)), step), step);
            case "windows" -> windows(grouped(stream(in(step, 0)), step), step);
            case "cogroup" -> stream(in(step, 0)).groupByKey().<String>cogroup((k, v, known) -> brief(known + "1" + Streams.first(v)))
                    .cogroup(stream(in(step, 1)).groupByKey(), (k, v, known) -> brief(known + "2" + Streams.first(v)))
                    .aggregate(() -> "", stored(step));
            case "join" -> joined(step);
            case "look_up" -> looked_up(step);
            case "look_up_global" -> lookedUpGlobally(step, f);
            case "table_filter" -> step.has("store")
                    ? table(in(step, 0)).filter((k, v) -> passes(f, k, v), stored(step))
                    : table(in(step, 0)).filter((k, v) -> passes(f, k, v));
            case "table_map_values" -> table(in(step, 0)).mapValues(v -> mapped(f, v), stored(step));
            case "table_aggregate" -> tableAggregated(step);
            case "table_join" -> tablesJoined(step);
            case "foreign_key_join" -> step.get("kind").asText().equals("left")
                    ? table(in(step, 0)).leftJoin(table(in(step, 1)), v -> key(f, null, v), Described::pair, stored(step))
                    : table(in(step, 0)).join(table(in(step, 1)), v -> key(f, null, v), Described::pair, stored(step));
            case "suppress" -> table(in(step, 0)).suppress(Suppressed.untilTimeLimit(ms(step, "limit"), Suppressed.BufferConfig.unbounded()));
            case "to_stream" -> asStream(in(step, 0));
            default -> throw new IllegalArgumentException(step.toString());
        };
    }

    private Object split(JsonNode step, int f) {
        var streams = stream(in(step, 0)).split().branch((k, v) -> passes(f, k, v)).defaultBranch();
        var names = new ArrayList<>(streams.keySet());
        names.sort(null);
        // The default branch is the one that ends in 0.
        KStream<String, String> rest = streams.get(names.get(0));
        KStream<String, String> first = streams.get(names.get(1));
        return first.mapValues(v -> mapped(0, v)).merge(rest);
    }

    private KGroupedStream<String, String> grouped(KStream<String, String> stream, JsonNode step) {
        if (!step.has("key")) {
            return stream.groupByKey(Grouped.with(TEXT, TEXT));
        }
        int f = step.get("key").asInt();
        return stream.groupBy((k, v) -> key(f, k, v), step.has("name") ? Grouped.with(step.get("name").asText(), TEXT, TEXT) : Grouped.with(TEXT, TEXT));
    }

    private Object aggregated(KGroupedStream<String, String> grouped, JsonNode step) {
        return switch (step.get("kind").asText()) {
            case "count" -> grouped.count(counts(step)).mapValues(v -> v.toString(), Materialized.with(TEXT, TEXT));
            case "reduce" -> grouped.reduce((one, two) -> brief(one + two), stored(step));
            default -> grouped.aggregate(() -> "", Described::add, stored(step));
        };
    }

    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts(JsonNode step) {
        return step.has("store")
                ? Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(step.get("store").asText()).withKeySerde(TEXT).withValueSerde(Serdes.Long())
                : Materialized.with(TEXT, Serdes.Long());
    }

    private Object tableAggregated(JsonNode step) {
        int f = step.get("key").asInt();
        Grouped<String, String> by = step.has("name") ? Grouped.with(step.get("name").asText(), TEXT, TEXT) : Grouped.with(TEXT, TEXT);
        Object source = in(step, 0);
        KGroupedTable<String, String> grouped = source instanceof Windows
                ? ((Windows) source).table.groupBy((k, v) -> KeyValue.pair(k.key(), v.toString()), by)
                : table(source).groupBy((k, v) -> KeyValue.pair(key(f, k, v), v), by);
        return switch (step.get("kind").asText()) {
            case "count" -> grouped.count(counts(step)).mapValues(v -> v.toString(), Materialized.with(TEXT, TEXT));
            case "reduce" -> grouped.reduce((one, two) -> brief(one + two), (one, two) -> brief(one + "-" + two), stored(step));
            default -> grouped.aggregate(() -> "", (k, v, known) -> brief(known + Streams.first(v)), Described::remove, stored(step));
        };
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private Object windows(KGroupedStream<String, String> grouped, JsonNode step) {
        KTable table;
        boolean counts = step.get("kind").asText().equals("count");
        boolean onClose = step.get("emit").asBoolean();
        if (step.get("windows").asText().equals("session")) {
            SessionWindowedKStream<String, String> windowed = grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(step, "size"), ms(step, "grace")));
            if (onClose) {
                windowed = windowed.emitStrategy(EmitStrategy.onWindowClose());
            }
            table = counts ? windowed.count(Materialized.with(TEXT, Serdes.Long()))
                    : windowed.reduce((one, two) -> brief(String.valueOf((Object) one) + String.valueOf((Object) two)), Materialized.with(TEXT, TEXT));
        } else {
            TimeWindowedKStream<String, String> windowed = step.get("windows").asText().equals("sliding")
                    ? grouped.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(step, "size"), ms(step, "grace")))
                    : grouped.windowedBy(TimeWindows.ofSizeAndGrace(ms(step, "size"), ms(step, "grace")).advanceBy(ms(step, "advance")));
            if (onClose) {
                windowed = windowed.emitStrategy(EmitStrategy.onWindowClose());
            }
            Materialized as = counts ? Materialized.with(TEXT, Serdes.Long()) : Materialized.with(TEXT, TEXT);
            as.withRetention(Duration.ofMinutes(10));
            table = counts ? windowed.count(as)
                    : windowed.reduce((one, two) -> brief(String.valueOf((Object) one) + String.valueOf((Object) two)), as);
        }
        if (step.get("suppress").asBoolean()) {
            table = table.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
        }
        return new Windows(table);
    }

    private Object joined(JsonNode step) {
        KStream<String, String> left = stream(in(step, 0));
        KStream<String, String> right = stream(in(step, 1));
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(ms(step, "before"), ms(step, "grace")).after(ms(step, "after"));
        StreamJoined<String, String, String> by = StreamJoined.with(TEXT, TEXT, TEXT);
        if (step.has("store")) {
            by = by.withStoreName(step.get("store").asText());
        }
        return switch (step.get("kind").asText()) {
            case "inner" -> left.join(right, Described::pair, windows, by);
            case "left" -> left.leftJoin(right, Described::pair, windows, by);
            default -> left.outerJoin(right, Described::pair, windows, by);
        };
    }

    private Object looked_up(JsonNode step) {
        KStream<String, String> left = stream(in(step, 0));
        Joined<String, String, String> by = Joined.with(TEXT, TEXT, TEXT);
        if (step.has("grace")) {
            by = by.withGracePeriod(ms(step, "grace"));
            left = left.filter((k, v) -> k != null);
        }
        return step.get("kind").asText().equals("left")
                ? left.leftJoin(table(in(step, 1)), Described::pair, by)
                : left.join(table(in(step, 1)), Described::pair, by);
    }

    @SuppressWarnings("unchecked")
    private Object lookedUpGlobally(JsonNode step, int f) {
        GlobalKTable<String, String> global = (GlobalKTable<String, String>) in(step, 1);
        KStream<String, String> left = stream(in(step, 0)).filter((k, v) -> v != null);
        return step.get("kind").asText().equals("left")
                ? left.leftJoin(global, (k, v) -> key(f, k, v), Described::pair)
                : left.join(global, (k, v) -> key(f, k, v), Described::pair);
    }

    private Object tablesJoined(JsonNode step) {
        KTable<String, String> left = table(in(step, 0));
        KTable<String, String> right = table(in(step, 1));
        return switch (step.get("kind").asText()) {
            case "inner" -> left.join(right, Described::pair, stored(step));
            case "left" -> left.leftJoin(right, Described::pair, stored(step));
            default -> left.outerJoin(right, Described::pair, stored(step));
        };
    }
}
