import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Joins of streams, branches, processors of values, streams made into tables. */
final class Joins {

    private Joins() { }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        streamJoins(twins);
        branches(twins);
        return twins;
    }

    private static Duration ms(long count) {
        return Duration.ofMillis(count);
    }

    private static KStream<String, String> texts(StreamsBuilder builder, String topic) {
        return builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()));
    }

    private static StreamJoined<String, String, String> joined() {
        return StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
    }

    private static void streamJoins(Map<String, Oracle.Twin> twins) {
        twins.put("stream_join", (builder, said) -> texts(builder, "in")
                .join(texts(builder, "other"), Streams::both, JoinWindows.ofTimeDifferenceWithNoGrace(ms(50)), joined())
                .to("out"));
        twins.put("stream_left_join", (builder, said) -> texts(builder, "in")
                .leftJoin(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(20)), joined())
                .to("out"));
        twins.put("stream_outer_join", (builder, said) -> texts(builder, "in")
                .outerJoin(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(30), ms(100)), joined())
                .to("out"));
        twins.put("stream_join_named", (builder, said) -> texts(builder, "in")
                .join(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(100)), joined().withName("meet"))
                .to("out"));
        twins.put("stream_left_join_named_stores", (builder, said) -> texts(builder, "in")
                .leftJoin(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(10)),
                        joined().withName("meet").withStoreName("kept"))
                .to("out"));
        twins.put("stream_outer_join_named", (builder, said) -> texts(builder, "in")
                .outerJoin(texts(builder, "other"), (k, left, right) -> Streams.both(k, Streams.both(left, right)),
                        JoinWindows.ofTimeDifferenceWithNoGrace(ms(25)), joined().withName("meet"))
                .to("out"));
        twins.put("stream_outer_join_asymmetric", (builder, said) -> texts(builder, "in")
                .outerJoin(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(30)).before(ms(0)).after(ms(80)), joined())
                .to("out"));
        twins.put("stream_left_join_only_before", (builder, said) -> texts(builder, "in")
                .leftJoin(texts(builder, "other"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(60), ms(15)).after(ms(-10)), joined())
                .to("out"));
        twins.put("stream_join_repartition", (builder, said) -> texts(builder, "in")
                .selectKey((k, v) -> Streams.first(v))
                .join(texts(builder, "other"), Streams::both, JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(50)), joined())
                .to("out"));
        twins.put("stream_left_join_repartition_named", (builder, said) -> texts(builder, "in")
                .map((k, v) -> KeyValue.pair("a".equals(k) ? null : Streams.first(v), v))
                .leftJoin(texts(builder, "other").selectKey((k, v) -> k), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(50)), joined().withName("meet"))
                .to("out"));
        twins.put("stream_self_join", (builder, said) -> {
            KStream<String, String> stream = texts(builder, "in");
            stream.join(stream, Streams::both, JoinWindows.ofTimeDifferenceAndGrace(ms(30), ms(30)), joined()).to("out");
        });
        twins.put("stream_join_then_left_join", (builder, said) -> texts(builder, "in")
                .join(texts(builder, "other"), Streams::both, JoinWindows.ofTimeDifferenceAndGrace(ms(30), ms(50)), joined())
                .leftJoin(texts(builder, "third"), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(20), ms(50)), joined())
                .to("out"));
        twins.put("stream_outer_join_in_memory", (builder, said) -> texts(builder, "in")
                .filter((k, v) -> v != null)
                .outerJoin(texts(builder, "other").filter((k, v) -> v != null), Streams::both,
                        JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(20)), joined().withLoggingDisabled()
                                .withDslStoreSuppliers(org.apache.kafka.streams.state.BuiltInDslStoreSuppliers.IN_MEMORY))
                .to("out"));
        twins.put("stream_joined_twice_repartition", (builder, said) -> {
            KStream<String, String> stream = builder.<String, String>stream("in").selectKey((k, v) -> Streams.first(v));
            KTable<String, String> table = builder.table("table");
            stream.join(table, Streams::both).to("out");
            stream.leftJoin(table, Streams::both).to("second");
        });
        twins.put("null_keys_for_a_later_left_join", (builder, said) -> {
            KTable<String, String> table = builder.table("table");
            builder.<String, String>stream("in")
                    .map((k, v) -> KeyValue.pair("a".equals(k) ? null : Streams.first(v), v))
                    .repartition()
                    .filter((k, v) -> v != null)
                    .leftJoin(table, Streams::both, Joined.as("lookup"))
                    .to("out");
        });
    }

    /** Numbers the values of a key. */
    static final class Numbering implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, String> store;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            this.context = context;
            this.store = context.getStateStore("numbers");
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            if (record.key() == null) {
                context.forward(record.withValue("no key").withTimestamp(record.timestamp() + 3));
                return;
            }
            String known = store.get(record.key());
            String number = known == null ? "1" : String.valueOf(Integer.parseInt(known) + 1);
            store.put(record.key(), number);
            context.forward(record.withValue(number + Streams.first(record.value())));
        }
    }

    private static void branches(Map<String, Oracle.Twin> twins) {
        twins.put("branches", (builder, said) -> {
            Map<String, KStream<String, String>> branches = texts(builder, "in").split()
                    .branch((k, v) -> "a".equals(k))
                    .branch((k, v) -> v != null)
                    .defaultBranch();
            branches.get("KSTREAM-BRANCH-00000000011").to("out");
            branches.get("KSTREAM-BRANCH-00000000012").to("second");
            branches.get("KSTREAM-BRANCH-00000000010").to("third");
        });
        twins.put("branches_named", (builder, said) -> {
            Map<String, KStream<String, String>> branches = texts(builder, "in").split(Named.as("by-"))
                    .branch((k, v) -> "a".equals(k), Branched.as("a"))
                    .branch((k, v) -> "b".equals(k), Branched.withFunction(s -> s.mapValues(v -> "b" + v), "b"))
                    .branch((k, v) -> "c".equals(k), Branched.withConsumer(s -> s.to("third"), "c"))
                    .noDefaultBranch();
            branches.get("by-a").merge(branches.get("by-b")).to("out");
        });
        twins.put("branches_with_default", (builder, said) -> {
            Map<String, KStream<String, String>> branches = texts(builder, "in")
                    .selectKey((k, v) -> Streams.first(v))
                    .split(Named.as("part-"))
                    .branch((k, v) -> "a".equals(k), Branched.as("first"))
                    .defaultBranch(Branched.as("rest"));
            branches.get("part-first").groupByKey().count().toStream().to("out");
            branches.get("part-rest").to("second");
        });
        twins.put("process_values", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("numbers"), Serdes.String(), Serdes.String()));
            texts(builder, "in").processValues(Numbering::new, "numbers").groupByKey().count().toStream().to("out");
        });
        twins.put("process_values_named", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("numbers"), Serdes.String(), Serdes.String()));
            texts(builder, "in").processValues(Numbering::new, Named.as("numbering"), "numbers").to("out");
        });
        twins.put("to_table", (builder, said) -> texts(builder, "in").toTable().toStream().to("out"));
        twins.put("to_table_named", (builder, said) -> texts(builder, "in")
                .toTable(Named.as("latest"), Materialized.as("stored")).toStream().to("out"));
        twins.put("to_table_repartition", (builder, said) -> texts(builder, "in")
                .selectKey((k, v) -> Streams.first(v))
                .toTable(Materialized.as("stored")).toStream().to("out"));
    }
}
