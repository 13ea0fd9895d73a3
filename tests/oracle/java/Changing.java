import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Functions that change values in place. */
final class Changing {
    private static final Serde<List<String>> LISTS = Serdes.serdeFrom(
            (topic, list) -> list == null ? null : String.join("|", list).getBytes(StandardCharsets.UTF_8),
            (topic, data) -> data == null ? null
                    : new ArrayList<>(Arrays.asList(new String(data, StandardCharsets.UTF_8).split("\\|", -1))));

    private Changing() {
    }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        twins.put("changed_rows", (builder, said) -> {
            KTable<String, List<String>> rows = lists(builder, "table").toTable(kept("rows"));
            lists(builder, "in").join(rows, (value, row) -> added(added(row, "joined"), value.get(1)))
                    .to("out", Produced.with(Serdes.String(), LISTS));
            rows.toStream().mapValues(row -> added(row, "streamed")).to("second", Produced.with(Serdes.String(), LISTS));
            rows.mapValues(row -> added(row, "mapped"), kept("mapped"))
                    .toStream().to("third", Produced.with(Serdes.String(), LISTS));
        });
        twins.put("changed_aggregates", (builder, said) -> {
            KTable<String, List<String>> lists = grouped(builder)
                    .aggregate(Changing::empty, (key, value, list) -> added(list, value.get(1)), kept("lists"));
            lists.toStream().mapValues(list -> added(list, "streamed")).to("out", Produced.with(Serdes.String(), LISTS));
            lists.toStream().to("second", Produced.with(Serdes.String(), LISTS));
        });
        twins.put("changed_windows", (builder, said) -> grouped(builder)
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(30))
                        .advanceBy(Duration.ofMillis(40)))
                .aggregate(Changing::empty, (key, value, list) -> added(list, value.get(1)),
                        Materialized.with(Serdes.String(), LISTS))
                .toStream((key, list) -> key.key() + "@" + key.window().start())
                .mapValues(list -> added(list, "streamed"))
                .to("out", Produced.with(Serdes.String(), LISTS)));
        twins.put("changed_by_a_processor", (builder, said) -> {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.inMemoryKeyValueStore("kept"), Serdes.String(), LISTS).withCachingEnabled());
            lists(builder, "in").process(Keeping::new, "kept").to("out", Produced.with(Serdes.String(), LISTS));
        });
        return twins;
    }

    private static KStream<String, List<String>> lists(StreamsBuilder builder, String topic) {
        return builder.<String, String>stream(topic)
                .filter((key, value) -> key != null && value != null)
                .mapValues(value -> added(empty(), value));
    }

    private static KGroupedStream<String, List<String>> grouped(StreamsBuilder builder) {
        return lists(builder, "in").groupByKey(Grouped.with(Serdes.String(), LISTS));
    }

    private static Materialized<String, List<String>, KeyValueStore<Bytes, byte[]>> kept(String name) {
        return Materialized.<String, List<String>, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.String()).withValueSerde(LISTS);
    }

    private static List<String> empty() {
        return new ArrayList<>(List.of("-"));
    }

    private static List<String> added(List<String> list, String text) {
        if (list != null) {
            list.add(text);
        }
        return list;
    }

    /** Changes what it has read, what it has put, and what it has forwarded. */
    private static final class Keeping implements Processor<String, List<String>, String, List<String>> {
        private ProcessorContext<String, List<String>> context;
        private KeyValueStore<String, List<String>> store;

        @Override
        public void init(ProcessorContext<String, List<String>> given) {
            context = given;
            store = given.getStateStore("kept");
        }

        @Override
        public void process(Record<String, List<String>> record) {
            List<String> known = store.get(record.key());
            if (known == null) {
                known = empty();
            }
            added(known, record.value().get(1));
            store.put(record.key(), known);
            added(known, "after put");
            added(store.get(record.key()), "after get");
            context.forward(record.withValue(store.get(record.key())));
            context.forward(record.withValue(known));
        }
    }
}
