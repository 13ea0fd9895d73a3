import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.processor.ProcessorContext;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Versioned tables, transformers, sources by pattern, global and read-only stores, the wall clock, small maps. */
final class Sources {

    private Sources() { }

    /** What is added to a topology after the builder is done with it. */
    static final Map<String, Consumer<Topology>> AFTERWARDS = new LinkedHashMap<>();

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        versioned(twins);
        processors(twins);
        AFTERWARDS.put("read_only_store", topology -> topology
                .addReadOnlyStateStore(
                        Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("kept"), Serdes.String(), Serdes.String())
                                .withLoggingDisabled(),
                        "changes-source", new StringDeserializer(), new StringDeserializer(), "table", "keep",
                        () -> new Keeping("kept"))
                .addSource("source", new StringDeserializer(), new StringDeserializer(), "in")
                .addProcessor("look-up", () -> new LookingUp("kept"), "source")
                .connectProcessorAndStateStores("look-up", "kept")
                .addSink("sink", "out", new StringSerializer(), new StringSerializer(), "look-up"));
        return twins;
    }

    private static Materialized<String, String, KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>> history(
            String name, long ms) {
        return Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore(name, Duration.ofMillis(ms)))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
    }

    private static void versioned(Map<String, Oracle.Twin> twins) {
        twins.put("versioned_table", (builder, said) -> builder.<String, String>table("in", history("versions", 200))
                .filter((k, v) -> v.length() > 1).mapValues(v -> v + "!").toStream().to("out"));
        twins.put("versioned_table_joins", (builder, said) -> {
            KTable<String, String> table = builder.table("table", history("versions", 300));
            builder.<String, String>stream("in").join(table, Streams::both).to("out");
            builder.<String, String>stream("other").leftJoin(table, Streams::both).to("second");
        });
        twins.put("versioned_join_with_grace", (builder, said) -> {
            KTable<String, String> table = builder.table("table", history("versions", 1_000_000));
            builder.<String, String>stream("in")
                    .join(table, Streams::both, Joined.<String, String, String>with(Serdes.String(), Serdes.String(), null)
                            .withName("wait").withGracePeriod(Duration.ofMillis(40)))
                    .to("out");
        });
        twins.put("versioned_left_join_with_grace", (builder, said) -> {
            KTable<String, String> table = builder.table("table", history("versions", 1_000_000));
            builder.<String, String>stream("in")
                    .filter((k, v) -> k != null) // Kafka Streams fails: KStreamKTableJoinProcessor buffers null keys
                    .leftJoin(table, Streams::both, Joined.<String, String, String>with(Serdes.String(), Serdes.String(), null)
                            .withGracePeriod(Duration.ofMillis(40)))
                    .to("out");
        });
        twins.put("versioned_group_by_count", (builder, said) -> builder.<String, String>table("in", history("versions", 500))
                .groupBy((k, v) -> KeyValue.pair(Streams.first(v), v), Grouped.with(Serdes.String(), Serdes.String()))
                .count().toStream().to("out"));
        twins.put("versioned_tables_joined", (builder, said) -> builder.<String, String>table("in", history("lefts", 500))
                .outerJoin(builder.<String, String>table("other", history("rights", 500)), Streams::both)
                .toStream().to("out"));
    }

    private static void processors(Map<String, Oracle.Twin> twins) {
        twins.put("transform_values", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("before"), Serdes.String(), Serdes.String()));
            builder.<String, String>table("in").transformValues(Remembering::new, "before").toStream().to("out");
        });
        twins.put("transform_values_stored", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("before"), Serdes.String(), Serdes.String()));
            KTable<String, String> table = builder.<String, String>table("in").transformValues(Remembering::new,
                    Materialized.<String, String, KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("kept")
                            .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()),
                    Named.as("remember"), "before");
            builder.<String, String>stream("table").join(table, Streams::both).to("out");
            table.toStream().to("second");
        });
        twins.put("pattern_source", (builder, said) -> builder.<String, String>stream(Pattern.compile("in|oth.*"))
                .groupByKey().count().toStream().to("out", Produced.with(Serdes.String(), Serdes.Long())));
        twins.put("global_store", (builder, said) -> {
            builder.addGlobalStore(
                    Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("kept"), Serdes.String(), Serdes.String()),
                    "table", Consumed.with(Serdes.String(), Serdes.String()), () -> new Keeping("kept"));
            builder.<String, String>stream("in").process(() -> new LookingUp("kept")).to("out");
        });
        twins.put("read_only_store", (builder, said) -> { });
        twins.put("punctuate_wall_clock", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("held"), Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(Ticking::new, "held").to("out");
        });
        twins.put("least_recently_used", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.lruMap("kept", 2), Serdes.String(), Serdes.String()));
            builder.<String, String>stream("in").process(() -> new Swapping("kept"), "kept").to("out");
        });
    }

    /** Puts what it gets. */
    static final class Keeping implements Processor<String, String, Void, Void> {
        private final String name;
        private KeyValueStore<String, String> store;

        Keeping(String name) {
            this.name = name;
        }

        @Override
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<Void, Void> context) {
            this.store = context.getStateStore(name);
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() != null) {
                store.put(record.key(), record.value());
            }
        }
    }

    /** Forwards what the store has. */
    static final class LookingUp implements Processor<String, String, String, String> {
        private final String name;
        private org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context;

        LookingUp(String name) {
            this.name = name;
        }

        @Override
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context) {
            this.context = context;
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() != null) {
                Object found = ((org.apache.kafka.streams.state.ReadOnlyKeyValueStore<String, ?>)
                        context.getStateStore(name)).get(record.key());
                context.forward(record.withValue(Streams.both(record.value(), found)));
            }
        }
    }

    /** Forwards what the store had, and puts the value; a value that begins with "a" is only looked up. */
    static final class Swapping implements Processor<String, String, String, String> {
        private final String name;
        private org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context;
        private KeyValueStore<String, String> store;

        Swapping(String name) {
            this.name = name;
        }

        @Override
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context) {
            this.context = context;
            this.store = context.getStateStore(name);
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() != null) {
                context.forward(record.withValue(Streams.both(store.get(record.key()), store.approximateNumEntries())));
                if (!"a".equals(Streams.first(record.value()))) {
                    store.put(record.key(), record.value());
                }
            }
        }
    }

    /** Tells each value and the one before. */
    static final class Remembering implements ValueTransformerWithKey<String, String, String> {
        private KeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext context) {
            this.store = context.getStateStore("before");
        }

        @Override
        public String transform(String key, String value) {
            String before = store.get(key);
            store.put(key, value);
            return value == null ? null : Streams.both(before, value);
        }

        @Override
        public void close() { }
    }

    /** Collects values, and forwards all that is held whenever 100 ms have passed on the wall clock. */
    static final class Ticking implements Processor<String, String, String, String> {
        private KeyValueStore<String, String> store;

        @Override
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context) {
            this.store = context.getStateStore("held");
            context.schedule(Duration.ofMillis(100), PunctuationType.WALL_CLOCK_TIME, time -> {
                try (KeyValueIterator<String, String> all = store.all()) {
                    while (all.hasNext()) {
                        KeyValue<String, String> next = all.next();
                        context.forward(new Record<>(next.key, next.value, time));
                        store.delete(next.key);
                    }
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
}
