import com.fasterxml.jackson.annotation.JsonPropertyOrder;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** The topologies of topologies.py, until SIGTERM. Settings that the properties do not name are Kafka Streams' own. */
public final class Bench {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String USAGE = "Bench <topology> <properties>";

    public static final class View {
        public long id;
        public String user;
        public String page;
        public int millis;
        public boolean ok;
    }

    @JsonPropertyOrder({"page", "seconds", "user"})
    public record Slow(String page, int seconds, String user) {}

    @JsonPropertyOrder({"page", "country"})
    public record Visit(String page, String country) {}

    @JsonPropertyOrder({"page", "failed"})
    public record Pair(String page, String failed) {}

    public static void main(final String[] args) throws Exception {
        if (args.length != 2) {
            throw new IllegalArgumentException(USAGE);
        }
        final Properties settings = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(args[1]))) {
            settings.load(reader);
        }
        final StreamsBuilder builder = new StreamsBuilder(new TopologyConfig(new StreamsConfig(settings)));
        build(args[0], builder);
        final KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        final Restoring restoring = new Restoring();
        streams.setGlobalStateRestoreListener(restoring);
        streams.setStateListener(restoring);
        final CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        Queries.serve(streams);
        stopped.await();
    }

    private static void build(final String topology, final StreamsBuilder builder) {
        final String output = System.getenv("BENCH_OUTPUT");
        if (topology.equals("foreign-key-join")) {
            foreignKeyJoin(builder, output);
            return;
        }
        final KStream<String, View> views =
            builder.stream(System.getenv("BENCH_INPUT"), Consumed.with(Serdes.String(), json(View.class)));
        switch (topology) {
            case "stateless" -> stateless(views, output);
            case "windowed-count" -> windowedCount(views, output, Materialized.as("counts"));
            case "windowed-count-day" ->
                windowedCount(views, output,
                    Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts").withRetention(Duration.ofDays(1)));
            case "table-sum" -> tableSum(views, output);
            case "join" -> {
                final KTable<String, String> countries =
                    builder.table(System.getenv("BENCH_TABLE"), Consumed.with(Serdes.String(), Serdes.String()));
                views.join(countries, (view, country) -> new Visit(view.page, country),
                        Joined.with(Serdes.String(), json(View.class), Serdes.String()))
                    .to(output, Produced.with(Serdes.String(), json(Visit.class)));
            }
            case "repartition-count" -> repartitionCount(views, output);
            case "session-count" -> sessionCount(views, output);
            case "stream-join" -> streamJoin(views, output);
            case "suppress" -> suppress(views, output);
            default -> throw new IllegalArgumentException(topology);
        }
    }

    private static void stateless(final KStream<String, View> views, final String output) {
        views.filter((user, view) -> view.ok)
            .mapValues(view -> new Slow(view.page, view.millis / 1000, view.user))
            .to(output, Produced.with(Serdes.String(), json(Slow.class)));
    }

    private static void windowedCount(
        final KStream<String, View> views,
        final String output,
        final Materialized<String, Long, WindowStore<Bytes, byte[]>> materialized
    ) {
        final Duration minute = Duration.ofMinutes(1);
        views.groupByKey(Grouped.with(Serdes.String(), json(View.class)))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(minute))
            .count(materialized)
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, minute.toMillis()), Serdes.Long()));
    }

    private static void tableSum(final KStream<String, View> views, final String output) {
        views.groupByKey(Grouped.with(Serdes.String(), json(View.class)))
            .aggregate(
                () -> 0L,
                (user, view, total) -> total + view.millis,
                Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(Queries.STORE)
                    .withKeySerde(Serdes.String())
                    .withValueSerde(Serdes.Long()))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void repartitionCount(final KStream<String, View> views, final String output) {
        views.groupBy((user, view) -> view.page, Grouped.with("by-page", Serdes.String(), json(View.class)))
            .count(Materialized.as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void sessionCount(final KStream<String, View> views, final String output) {
        views.groupByKey(Grouped.with(Serdes.String(), json(View.class)))
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofSeconds(1)))
            .count(Materialized.as("sessions"))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long()));
    }

    private static void streamJoin(final KStream<String, View> views, final String output) {
        views.filter((user, view) -> view.ok)
            .join(views.filter((user, view) -> !view.ok), (view, failed) -> new Pair(view.page, failed.page),
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofSeconds(1)),
                StreamJoined.with(Serdes.String(), json(View.class), json(View.class)))
            .to(output, Produced.with(Serdes.String(), json(Pair.class)));
    }

    private static void foreignKeyJoin(final StreamsBuilder builder, final String output) {
        final KTable<String, View> views =
            builder.table(System.getenv("BENCH_INPUT"), Consumed.with(Serdes.String(), json(View.class)));
        final KTable<String, String> users =
            builder.table(System.getenv("BENCH_TABLE"), Consumed.with(Serdes.String(), Serdes.String()));
        views.join(users, view -> String.format("user-%06d", view.millis % 1000),
                (view, country) -> new Visit(view.page, country), TableJoined.as("by-number"),
                Materialized.<String, Visit, KeyValueStore<Bytes, byte[]>>as("visits")
                    .withKeySerde(Serdes.String())
                    .withValueSerde(json(Visit.class)))
            .toStream()
            .to(output, Produced.with(Serdes.String(), json(Visit.class)));
    }

    private static void suppress(final KStream<String, View> views, final String output) {
        final Duration minute = Duration.ofMinutes(1);
        views.groupByKey(Grouped.with(Serdes.String(), json(View.class)))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(minute))
            .count(Materialized.as("counts"))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, minute.toMillis()), Serdes.Long()));
    }

    /** Tell the harness that something has happened, as events.py does. */
    static void tell(final String event, final Map<String, Object> details) {
        final Map<String, Object> told = new LinkedHashMap<>();
        told.put("event", event);
        told.put("at_ms", System.currentTimeMillis());
        told.putAll(details);
        try {
            System.out.println(MAPPER.writeValueAsString(told));
        } catch (final IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static <T> Serde<T> json(final Class<T> type) {
        final ObjectReader reader = MAPPER.readerFor(type);
        final ObjectWriter writer = MAPPER.writerFor(type);
        return Serdes.serdeFrom((topic, value) -> {
            try {
                return value == null ? null : writer.writeValueAsBytes(value);
            } catch (final IOException error) {
                throw new UncheckedIOException(error);
            }
        }, (topic, data) -> {
            try {
                return data == null ? null : reader.readValue(data);
            } catch (final IOException error) {
                throw new UncheckedIOException(error);
            }
        });
    }
}
