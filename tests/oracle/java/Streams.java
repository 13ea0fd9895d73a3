import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Printed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** Streams, aggregations, tumbling and hopping windows, tables, stream-table joins, processors. */
final class Streams {

    private Streams() { }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        stateless(twins);
        printed(twins);
        aggregations(twins);
        windows(twins);
        tables(twins);
        processors(twins);
        return twins;
    }

    static String first(String value) {
        return value == null || value.isEmpty() ? "-" : value.substring(0, 1);
    }

    static String size(String value) {
        return value == null ? "none" : String.valueOf(value.length());
    }

    static String both(Object left, Object right) {
        return left + "+" + right;
    }

    static String flat(Windowed<String> key) {
        return key.key() + "@" + key.window().start() + "/" + key.window().end();
    }

    static KStream<String, String> strings(StreamsBuilder builder) {
        return builder.stream("in", Consumed.with(Serdes.String(), Serdes.String()));
    }

    private static void stateless(Map<String, Oracle.Twin> twins) {
        twins.put("filter", (builder, said) -> builder.<String, String>stream("in")
                .filter((k, v) -> v != null && v.length() > 2)
                .filterNot((k, v) -> "a".equals(k))
                .to("out"));
        twins.put("map", (builder, said) -> builder.<String, String>stream("in")
                .map((k, v) -> KeyValue.pair(first(v), both(k, v)))
                .to("out", Produced.with(Serdes.String(), Serdes.String())));
        twins.put("map_values", (builder, said) -> builder.<String, String>stream("in")
                .mapValues(v -> size(v))
                .mapValues((k, v) -> both(k, v), Named.as("with-key"))
                .to("out"));
        twins.put("flat_map", (builder, said) -> builder.<String, String>stream("in")
                .flatMap((k, v) -> v == null ? List.of()
                        : v.chars().mapToObj(c -> KeyValue.pair(String.valueOf((char) c), k)).collect(Collectors.toList()))
                .to("out"));
        twins.put("flat_map_values", (builder, said) -> builder.<String, String>stream("in")
                .flatMapValues(v -> v == null ? List.of() : Arrays.asList(v, size(v)), Named.as("flat"))
                .flatMapValues((k, v) -> List.of(both(k, v)))
                .to("out"));
        twins.put("select_key_and_peek", (builder, said) -> builder.<String, String>stream("in")
                .peek((k, v) -> said.add(both(k, v)), Named.as("look"))
                .selectKey((k, v) -> first(v))
                .peek((k, v) -> said.add(both(k, v)))
                .to("out", Produced.as("write")));
        twins.put("for_each", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            stream.foreach((k, v) -> said.add(both(k, v)));
            stream.filter((k, v) -> k != null).foreach((k, v) -> said.add(both(v, k)), Named.as("second"));
        });
        twins.put("merge", (builder, said) -> {
            KStream<String, String> left = builder.<String, String>stream("in").mapValues(v -> "l" + v);
            KStream<String, String> right = builder.<String, String>stream("other").mapValues(v -> "r" + v);
            left.merge(right).merge(builder.stream("third"), Named.as("three")).to("out");
        });
        twins.put("same_topic_twice", (builder, said) -> {
            builder.<String, String>stream("in").mapValues(v -> "first" + v).to("out");
            builder.<String, String>stream("in").mapValues(v -> "second" + v).to("out");
        });
        twins.put("two_topics_one_source", (builder, said) -> builder
                .<String, String>stream(List.of("in", "other"), Consumed.as("both")).to("out"));
        twins.put("diamond", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            KStream<String, String> upper = stream.mapValues(v -> v == null ? null : v.toUpperCase());
            KStream<String, String> keyed = stream.filter((k, v) -> k != null);
            upper.merge(keyed).to("out");
            keyed.to("second");
            stream.to("third");
        });
        twins.put("dynamic_topics", (builder, said) -> builder.<String, String>stream("in")
                .filter((k, v) -> k != null)
                .to((key, value, context) -> "out-" + key));
        twins.put("timestamp_extractor", (builder, said) -> builder.<String, String>stream("in",
                        Consumed.with(Serdes.String(), Serdes.String())
                                .withTimestampExtractor((record, partitionTime) ->
                                        record.value() == null ? partitionTime + 1 : record.timestamp() + 7))
                .groupByKey().count().toStream().mapValues(v -> String.valueOf(v)).to("out"));
        twins.put("repartition", (builder, said) -> builder.<String, String>stream("in")
                .selectKey((k, v) -> first(v)).repartition().to("out"));
        twins.put("repartition_named", (builder, said) -> builder.<String, String>stream("in")
                .map((k, v) -> KeyValue.pair(k, both(k, v)))
                .repartition(Repartitioned.<String, String>as("through").withNumberOfPartitions(3))
                .mapValues(v -> size(v))
                .repartition(Repartitioned.as("again"))
                .to("out"));
    }

    /** Where what is printed goes, a file each. */
    static final Path PRINTED = temporary();

    private static Path temporary() {
        try {
            return Files.createTempDirectory("printed");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void printed(Map<String, Oracle.Twin> twins) {
        twins.put("print", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            stream.print(Printed.toFile(PRINTED.resolve("plain").toString()));
            stream.print(Printed.<String, String>toFile(PRINTED.resolve("labelled").toString())
                    .withLabel("seen").withKeyValueMapper((k, v) -> both(v, k)).withName("printer"));
            stream.groupByKey().windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(100))).count()
                    .toStream().print(Printed.toFile(PRINTED.resolve("windows").toString()));
        });
    }

    private static void aggregations(Map<String, Oracle.Twin> twins) {
        twins.put("count_by_key", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey().count().toStream().mapValues(v -> v.toString()).to("out"));
        twins.put("count_named", (builder, said) -> builder.<String, String>stream("in", Consumed.as("source"))
                .groupByKey(Grouped.as("grouped"))
                .count(Named.as("counter"), Materialized.as("counts"))
                .toStream(Named.as("stream")).to("out"));
        twins.put("group_by_count", (builder, said) -> builder.<String, String>stream("in")
                .groupBy((k, v) -> first(v)).count().toStream().to("out"));
        twins.put("group_by_named_count", (builder, said) -> builder.<String, String>stream("in")
                .groupBy((k, v) -> first(v), Grouped.as("initial"))
                .count(Materialized.as("counts")).toStream().to("out"));
        twins.put("group_by_named_store", (builder, said) -> builder.<String, String>stream("in")
                .groupBy((k, v) -> first(v)).count(Materialized.as("counts")).toStream().to("out"));
        twins.put("select_key_reduce", (builder, said) -> builder.<String, String>stream("in")
                .selectKey((k, v) -> v == null ? null : first(v))
                .groupByKey()
                .reduce((left, right) -> left + "," + right)
                .toStream().to("out"));
        twins.put("reduce_by_key", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey().reduce((left, right) -> right.compareTo(left) > 0 ? right : left, Materialized.as("highest"))
                .toStream().to("out"));
        twins.put("reduce_named_repartition", (builder, said) -> builder.<String, String>stream("in")
                .map((k, v) -> KeyValue.pair(first(v), v))
                .groupByKey(Grouped.as("by-first"))
                .reduce((left, right) -> left + right, Named.as("joined"), Materialized.as("texts"))
                .toStream().to("out"));
        twins.put("aggregate", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey()
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + first(v),
                        Materialized.with(Serdes.String(), Serdes.String()))
                .toStream().to("out"));
        twins.put("aggregate_that_deletes", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey()
                .aggregate(() -> "", (k, v, aggregate) -> aggregate.length() > 8 ? null : aggregate + v)
                .toStream().to("out"));
        twins.put("flat_map_count", (builder, said) -> builder.<String, String>stream("in")
                .flatMap((k, v) -> v == null ? List.of() : List.of(KeyValue.pair("all", v), KeyValue.pair(first(v), v),
                        KeyValue.pair("all", v)))
                .groupByKey().count().toStream().to("out"));
        twins.put("double_values_aggregate", (builder, said) -> builder.<String, String>stream("in")
                .flatMapValues(v -> v == null ? List.of() : List.of(v, first(v)))
                .groupByKey().aggregate(() -> ".", (k, v, aggregate) -> aggregate + v, Materialized.as("texts"))
                .toStream().to("out"));
        twins.put("word_count", (builder, said) -> builder.<String, String>stream("in")
                .flatMapValues(v -> v == null ? List.of() : Arrays.asList(v.split("")))
                .groupBy((k, v) -> v, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count().toStream().to("out"));
        twins.put("two_aggregations_of_a_rekeyed_stream", (builder, said) -> {
            KStream<String, String> stream = builder.<String, String>stream("in").selectKey((k, v) -> first(v));
            stream.groupByKey().count().toStream().to("out");
            stream.groupByKey(Grouped.as("again")).reduce((left, right) -> right).toStream().to("second");
        });
        twins.put("two_aggregations_of_a_group", (builder, said) -> {
            KGroupedStream<String, String> grouped = builder.<String, String>stream("in").groupBy((k, v) -> first(v));
            grouped.count().toStream().to("out");
            grouped.reduce((left, right) -> right).toStream().to("second");
        });
        twins.put("two_aggregations_of_a_named_group", (builder, said) -> {
            KGroupedStream<String, String> grouped = builder.<String, String>stream("in")
                    .groupBy((k, v) -> first(v), Grouped.as("shared"));
            grouped.count(Materialized.as("counts")).toStream().to("out");
            grouped.reduce((left, right) -> right).toStream().to("second");
        });
        twins.put("count_of_counts", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey().count()
                .toStream()
                .groupBy((k, v) -> String.valueOf(v % 3), Grouped.with(Serdes.String(), Serdes.Long()))
                .count()
                .toStream().to("out"));
        twins.put("aggregate_in_memory_without_changelog", (builder, said) -> builder.<String, String>stream("in")
                .groupByKey()
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withLoggingDisabled())
                .toStream().to("out"));
        twins.put("aggregate_without_cache", (builder, said) -> builder.<String, String>stream("in")
                .flatMapValues(v -> v == null ? List.of() : List.of(v, v))
                .groupByKey()
                .count(Materialized.<String, Long, KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("counts")
                        .withCachingDisabled().withLoggingEnabled(Map.of("retention.ms", "1000")))
                .toStream().to("out"));
    }

    private static void windows(Map<String, Oracle.Twin> twins) {
        twins.put("tumbling_count", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(100)))
                .count()
                .toStream().selectKey((k, v) -> flat(k)).to("out", Produced.with(Serdes.String(), Serdes.Long())));
        twins.put("tumbling_reduce_with_grace", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(40)))
                .reduce((left, right) -> left + right, Materialized.as("texts"))
                .toStream().to("out"));
        twins.put("hopping_aggregate", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(30))
                        .advanceBy(Duration.ofMillis(40)))
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + first(v), Named.as("hops"), Materialized.as("hopped"))
                .toStream().map((k, v) -> KeyValue.pair(flat(k), v)).to("out"));
        twins.put("windowed_group_named", (builder, said) -> strings(builder)
                .groupBy((k, v) -> first(v), Grouped.with("grouped", Serdes.String(), Serdes.String()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(50)))
                .count(Named.as("counter"))
                .toStream().to("out"));
        twins.put("windowed_reduce_unnamed", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(50)))
                .reduce((left, right) -> right)
                .toStream().to("out"));
        twins.put("windowed_aggregate_unnamed", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(50)))
                .aggregate(() -> "", (k, v, aggregate) -> aggregate.length() > 3 ? null : aggregate + first(v))
                .toStream().to("out"));
        twins.put("windowed_retention", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(1000)))
                .count(Materialized.<String, Long, WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("kept")
                        .withRetention(Duration.ofDays(2)))
                .toStream().to("out"));
        twins.put("windows_counted_by_key", (builder, said) -> strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(100)))
                .count()
                .toStream()
                .groupBy((k, v) -> k.key(), Grouped.with(Serdes.String(), Serdes.Long()))
                .reduce(Long::sum)
                .toStream().to("out"));
    }

    private static void tables(Map<String, Oracle.Twin> twins) {
        twins.put("table_to_stream", (builder, said) -> builder.<String, String>table("in").toStream().to("out"));
        twins.put("table_materialized", (builder, said) -> builder
                .<String, String>table("in", Consumed.as("read"), Materialized.as("stored"))
                .toStream(Named.as("changes")).to("out"));
        twins.put("stream_table_join", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            KTable<String, String> table = builder.table("table");
            stream.join(table, Streams::both).to("out");
        });
        twins.put("stream_table_left_join", (builder, said) -> {
            KTable<String, String> table = builder.table("table", Materialized.as("stored"));
            builder.<String, String>stream("in").leftJoin(table, (k, v, t) -> both(k, both(v, t)),
                    Joined.as("joined")).to("out");
        });
        twins.put("stream_table_join_repartition", (builder, said) -> {
            KStream<String, String> stream = builder.<String, String>stream("in").selectKey((k, v) -> first(v));
            stream.join(builder.<String, String>table("table"), Streams::both).to("out");
        });
        twins.put("stream_table_left_join_repartition", (builder, said) -> {
            KStream<String, String> stream = builder.<String, String>stream("in")
                    .map((k, v) -> KeyValue.pair("a".equals(k) ? null : first(v), both(k, v)));
            stream.leftJoin(builder.<String, String>table("table"), Streams::both).to("out");
        });
        twins.put("stream_table_join_repartition_named", (builder, said) -> {
            KStream<String, String> stream = builder.<String, String>stream("in").selectKey((k, v) -> first(v));
            stream.join(builder.<String, String>table("table"), Streams::both, Joined.as("lookup")).to("out");
        });
        twins.put("stream_joined_with_counts", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            KTable<String, Long> counts = stream.groupByKey().count();
            stream.leftJoin(counts, Streams::both).to("out");
        });
        twins.put("stream_joined_with_two_tables", (builder, said) -> {
            KTable<String, String> first = builder.table("table");
            KTable<String, String> second = builder.table("other");
            builder.<String, String>stream("in").leftJoin(first, Streams::both).join(second, Streams::both).to("out");
        });
        twins.put("global_join", (builder, said) -> {
            GlobalKTable<String, String> table = builder.globalTable("table");
            builder.<String, String>stream("in").join(table, (k, v) -> first(v), Streams::both).to("out");
        });
        twins.put("global_left_join", (builder, said) -> {
            GlobalKTable<String, String> table = builder.globalTable("table", Consumed.as("everywhere"),
                    Materialized.as("held"));
            builder.<String, String>stream("in")
                    .leftJoin(table, (k, v) -> v != null && v.length() > 3 ? null : first(v), (k, v, t) -> both(k, both(v, t)),
                            Named.as("lookup"))
                    .to("out");
        });
        twins.put("global_join_then_count", (builder, said) -> {
            KStream<String, String> stream = builder.stream("in");
            GlobalKTable<String, String> table = builder.globalTable("table");
            stream.leftJoin(table, (k, v) -> k, Streams::both).groupByKey().count().toStream().to("out");
        });
        twins.put("table_source_and_count", (builder, said) -> {
            KTable<String, String> table = builder.table("table");
            table.toStream().groupBy((k, v) -> first(v)).count().toStream().to("out");
            builder.<String, String>stream("in").join(table, Streams::both).to("second");
        });
    }

    /** Numbers the values of a key; a null value says how many there were and starts again. */
    static final class Numbering implements Processor<String, String, String, String> {
        private ProcessorContext<String, String> context;
        private KeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext<String, String> context) {
            this.context = context;
            this.store = context.getStateStore("numbers");
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                context.forward(record.withValue("no key"));
                return;
            }
            String known = store.get(record.key());
            if (record.value() == null) {
                store.delete(record.key());
                context.forward(record.withValue("had " + known).withTimestamp(record.timestamp() + 1));
                return;
            }
            String number = known == null ? "1" : String.valueOf(Integer.parseInt(known) + 1);
            store.put(record.key(), number);
            context.forward(record.withValue(number + record.value()));
        }
    }

    /** Collects values and forwards all that is held, by key, whenever stream time passes a multiple of 100 ms. */
    static final class Collecting implements Processor<String, String, String, String> {
        private KeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext<String, String> context) {
            this.store = context.getStateStore("held");
            context.schedule(Duration.ofMillis(100), PunctuationType.STREAM_TIME, time -> {
                List<KeyValue<String, String>> all = new ArrayList<>();
                try (KeyValueIterator<String, String> entries = store.all()) {
                    entries.forEachRemaining(all::add);
                }
                for (KeyValue<String, String> entry : all) {
                    context.forward(new Record<>(entry.key, entry.value, time));
                    store.delete(entry.key);
                }
            });
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() != null && record.value() != null) {
                String known = store.get(record.key());
                store.put(record.key(), known == null ? record.value() : known + record.value());
            }
        }
    }

    /** Keeps the latest value by time; older ones are forwarded as late. */
    static final class Latest implements Processor<String, String, String, String> {
        private ProcessorContext<String, String> context;
        private TimestampedKeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext<String, String> context) {
            this.context = context;
            this.store = context.getStateStore("latest");
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            ValueAndTimestamp<String> known = store.get(record.key());
            if (known != null && known.timestamp() > record.timestamp()) {
                context.forward(record.withValue("late by " + (known.timestamp() - record.timestamp())), "late");
                return;
            }
            store.put(record.key(), record.value() == null ? null : ValueAndTimestamp.make(record.value(), record.timestamp()));
            context.forward(record, "timely");
        }
    }

    /** Looks back 100 ms in a window store of its own. */
    static final class LookingBack implements Processor<String, String, String, String> {
        private ProcessorContext<String, String> context;
        private WindowStore<String, String> store;

        @Override
        public void init(ProcessorContext<String, String> context) {
            this.context = context;
            this.store = context.getStateStore("seen");
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            StringBuilder seen = new StringBuilder();
            try (WindowStoreIterator<String> found = store.fetch(record.key(), Math.max(0, record.timestamp() - 100), record.timestamp())) {
                found.forEachRemaining(entry -> seen.append(entry.key).append('=').append(entry.value).append(' '));
            }
            store.put(record.key(), record.value(), record.timestamp());
            context.forward(record.withValue(seen.toString()));
        }
    }

    private static void processors(Map<String, Oracle.Twin> twins) {
        twins.put("process_with_store", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("numbers"), Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(Numbering::new, "numbers").to("out");
        });
        twins.put("process_named_shared_store", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.inMemoryKeyValueStore("numbers"), Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(Numbering::new, Named.as("one"), "numbers").to("out");
            builder.<String, String>stream("other").process(Numbering::new, Named.as("two"), "numbers").to("out");
        });
        twins.put("process_then_count", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("numbers"), Serdes.String(), Serdes.String()).withLoggingDisabled());
            builder.<String, String>stream("in").process(Numbering::new, "numbers").groupByKey().count().toStream().to("out");
        });
        twins.put("punctuate_stream_time", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("held"), Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(Collecting::new, "held").to("out");
        });
        twins.put("process_to_named_children", (builder, said) -> {
            builder.addStateStore(Stores.timestampedKeyValueStoreBuilder(
                    Stores.persistentTimestampedKeyValueStore("latest"), Serdes.String(), Serdes.String()));
            KStream<String, String> latest = builder.<String, String>stream("in").process(Latest::new, "latest");
            latest.mapValues(v -> v, Named.as("timely")).to("out");
            latest.mapValues(v -> v, Named.as("late")).to("second");
        });
        twins.put("process_with_window_store", (builder, said) -> {
            builder.addStateStore(Stores.windowStoreBuilder(
                    Stores.persistentWindowStore("seen", Duration.ofMillis(300), Duration.ofMillis(100), false),
                    Serdes.String(), Serdes.String()).withLoggingDisabled());
            builder.<String, String>stream("in").process(LookingBack::new, "seen").to("out");
        });
        twins.put("process_with_logged_window_store", (builder, said) -> {
            builder.addStateStore(Stores.windowStoreBuilder(
                    Stores.persistentWindowStore("seen", Duration.ofMinutes(10), Duration.ofMillis(100), false),
                    Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(LookingBack::new, "seen").to("out");
        });
    }
}
