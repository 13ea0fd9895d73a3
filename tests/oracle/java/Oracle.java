import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.errors.TopologyException;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.internals.InternalTopicConfig;
import org.apache.kafka.streams.processor.internals.InternalTopologyBuilder;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Replays scenarios through Kafka Streams' own TopologyTestDriver and writes down everything it gives.
 *
 * Arguments: a file of scenarios and a file for the results, JSON lines both; none, if scenarios that describe their topologies
 * come one by one and are to be answered. Bytes are written as ISO-8859-1 text.
 * Topics: {topic: [[index of the input record, key, value, timestamp, [[header, value]...]]...]}.
 */
public final class Oracle {

    /** One topology; what its side effects say goes to the list. */
    interface Twin {
        void build(StreamsBuilder builder, List<String> said);
    }

    private static final String APPLICATION = "oracle";
    /** A record of this topic moves the wall clock. */
    private static final String CLOCK = "~clock";
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Map<String, Twin> twins = new HashMap<>();
        twins.putAll(Streams.twins());
        twins.putAll(Windows.twins());
        twins.putAll(Joins.twins());
        twins.putAll(Tables.twins());
        twins.putAll(Failures.twins());
        twins.putAll(Optimized.twins());
        twins.putAll(Sources.twins());
        twins.putAll(Suppliers.twins());
        twins.putAll(Changing.twins());
        Path state = Files.createTempDirectory("oracle");
        if (arguments.length == 0) {
            answer(state);
            return;
        }
        try (BufferedReader in = Files.newBufferedReader(Path.of(arguments[0]));
                PrintWriter out = new PrintWriter(Files.newBufferedWriter(Path.of(arguments[1])))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JsonNode scenario = JSON.readTree(line);
                String name = scenario.get("topology").asText();
                if (!twins.containsKey(name)) {
                    throw new IllegalArgumentException("No topology is named " + name);
                }
                try {
                    out.println(JSON.writeValueAsString(replay(twins.get(name), scenario, state)));
                } catch (RuntimeException e) {
                    throw new IllegalStateException("Kafka Streams fails in " + name, e);
                }
            }
        }
    }

    /** Takes scenarios with the steps of a topology from the input, and answers each; one that fails by saying why. */
    private static void answer(Path state) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode scenario = JSON.readTree(line);
            ObjectNode result;
            try {
                result = replay((builder, said) -> Described.build(builder, scenario.get("steps")), scenario, state);
            } catch (RuntimeException e) {
                StringWriter trace = new StringWriter();
                e.printStackTrace(new PrintWriter(trace));
                result = JSON.createObjectNode().put("failure", trace.toString());
            }
            out.println(JSON.writeValueAsString(result));
        }
    }

    private static ObjectNode replay(Twin twin, JsonNode scenario, Path state) throws Exception {
        List<String> said = new ArrayList<>();
        StreamsBuilder builder = new StreamsBuilder();
        twin.build(builder, said);
        Topology topology = builder.build(config(scenario, state));
        Sources.AFTERWARDS.getOrDefault(scenario.path("topology").asText(), unchanged -> { }).accept(topology);
        ObjectNode result = JSON.createObjectNode();
        result.put("describe", topology.describe().toString());
        ObjectNode topics = result.putObject("topics");
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, config(scenario, state), Instant.EPOCH)) {
            Map<String, TestInputTopic<String, String>> inputs = new HashMap<>();
            Map<String, TestOutputTopic<byte[], byte[]>> outputs = new TreeMap<>();
            int index = 0;
            for (JsonNode record : scenario.get("records")) {
                String topic = record.get(0).asText();
                if (topic.equals(CLOCK)) {
                    driver.advanceWallClockTime(Duration.ofMillis(record.get(3).asLong() % 150));
                } else inputs.computeIfAbsent(topic, t -> driver.createInputTopic(t, new StringSerializer(), new StringSerializer()))
                        .pipeInput(record(record));
                for (String written : new TreeSet<>(driver.producedTopicNames())) {
                    TestOutputTopic<byte[], byte[]> output = outputs.computeIfAbsent(written,
                            t -> driver.createOutputTopic(t, new ByteArrayDeserializer(), new ByteArrayDeserializer()));
                    while (!output.isEmpty()) {
                        append(topics.withArray("/" + written), index, output.readRecord());
                    }
                }
                for (String words : said) {
                    topics.withArray("/~said").addArray().add(index).addNull().add(words).add(-1).addArray();
                }
                said.clear();
                index++;
            }
            ObjectNode stores = result.putObject("stores");
            for (Map.Entry<String, StateStore> store : new TreeMap<>(driver.getAllStateStores()).entrySet()) {
                ArrayNode entries = entries(store.getValue());
                if (entries != null) {
                    stores.set(store.getKey(), entries);
                }
            }
            result.put("dropped", driver.metrics().values().stream()
                    .filter(metric -> "dropped-records-total".equals(metric.metricName().name()))
                    .mapToLong(metric -> ((Double) metric.metricValue()).longValue()).sum());
            result.set("internal_topics", internalTopics(topology));
            result.set("unnamed", JSON.valueToTree(unnamed(topology)));
        }
        printed(topics);
        return result;
    }

    /** What has been printed to files is there when the driver is closed. */
    private static void printed(ObjectNode topics) throws Exception {
        for (File file : new TreeSet<>(List.of(Streams.PRINTED.toFile().listFiles()))) {
            for (String line : Files.readAllLines(file.toPath())) {
                topics.withArray("/~" + file.getName()).addArray().add(-1).addNull().add(line).add(-1).addArray();
            }
            Files.delete(file.toPath());
        }
    }

    private static Properties config(JsonNode scenario, Path state) {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, APPLICATION);
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        config.put(StreamsConfig.STATE_DIR_CONFIG, state.toString());
        config.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, scenario.get("optimization").asText());
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        if (Failures.twins().containsKey(scenario.get("topology").asText())) {
            Failures.configure(config);
        }
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, scenario.get("cache").asBoolean() ? 10_000_000 : 0);
        // Without these, what is emitted when depends on the wall clock.
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        return config;
    }

    private static TestRecord<String, String> record(JsonNode record) {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : record.get(4)) {
            headers.add(header.get(0).asText(), header.get(1).asText().getBytes(StandardCharsets.UTF_8));
        }
        return new TestRecord<>(text(record.get(1)), text(record.get(2)), headers, record.get(3).asLong());
    }

    private static String text(JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private static void append(ArrayNode log, int index, TestRecord<byte[], byte[]> record) {
        ArrayNode entry = log.addArray();
        entry.add(index).add(text(record.key())).add(text(record.value())).add(record.timestamp());
        ArrayNode headers = entry.addArray();
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
    }

    private static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.ISO_8859_1);
    }

    /** Entries as [key, value, timestamp or null], in no order that counts; null if the store holds no plain values. */
    private static ArrayNode entries(StateStore store) {
        if (store instanceof KeyValueStore) {
            try (KeyValueIterator<?, ?> all = ((KeyValueStore<?, ?>) store).all()) {
                return entries(all);
            }
        }
        if (store instanceof WindowStore) {
            try (KeyValueIterator<?, ?> all = ((WindowStore<?, ?>) store).all()) {
                return entries(all);
            }
        }
        return null;
    }

    private static ArrayNode entries(KeyValueIterator<?, ?> all) {
        ArrayNode entries = JSON.createArrayNode();
        while (all.hasNext()) {
            KeyValue<?, ?> next = all.next();
            Object value = next.value;
            Long timestamp = null;
            if (value instanceof ValueAndTimestamp) {
                timestamp = ((ValueAndTimestamp<?>) value).timestamp();
                value = ((ValueAndTimestamp<?>) value).value();
            }
            if (!(value instanceof String || value instanceof Long)) {
                return null;
            }
            Object key = next.key;
            if (key instanceof Windowed) {
                key = ((Windowed<?>) key).key() + "@" + ((Windowed<?>) key).window().start();
            }
            entries.addArray().add(key.toString()).add(value.toString()).add(timestamp);
        }
        return entries;
    }

    private static InternalTopologyBuilder internal(Topology topology) throws Exception {
        Field field = Topology.class.getDeclaredField("internalTopologyBuilder");
        field.setAccessible(true);
        return (InternalTopologyBuilder) field.get(topology);
    }

    /** What ensure.explicit.internal.resource.naming would complain about, line by line. */
    private static String[] unnamed(Topology topology) throws Exception {
        Field explicit = InternalTopologyBuilder.class.getDeclaredField("ensureExplicitInternalResourceNaming");
        explicit.setAccessible(true);
        explicit.set(internal(topology), true);
        try {
            internal(topology).checkUnprovidedNames();
            return new String[0];
        } catch (TopologyException e) {
            return e.getMessage().replace("Invalid topology: ", "").strip().split("\\R");
        }
    }

    /** Repartition and changelog topics with the settings that Kafka Streams gives them. */
    private static ObjectNode internalTopics(Topology topology) throws Exception {
        InternalTopologyBuilder internal = internal(topology);
        Map<String, InternalTopicConfig> all = new TreeMap<>();
        for (InternalTopologyBuilder.TopicsInfo info : internal.subtopologyToTopicsInfo().values()) {
            all.putAll(info.repartitionSourceTopics);
            all.putAll(info.stateChangelogTopics);
        }
        ObjectNode result = JSON.createObjectNode();
        all.forEach((name, config) -> result.set(
                name, JSON.valueToTree(new TreeMap<>(config.properties(Collections.emptyMap(), 86_400_000L)))));
        return result;
    }
}
